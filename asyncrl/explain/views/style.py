"""The style sheet of the report and of the page: light and dark, for a wide screen and a phone.

Contrast of text is at least 4.5 to 1 (`tests/explain/views/test_page_in_a_browser.py` measures it).
"""

from __future__ import annotations

from asyncrl.explain.views import plots, rollout_part

STYLE = (
    """
:root{--back:#fff;--box:#f6f7f8;--text:#1a1a1a;--dim:#5c5f63;--line:#d5d7da;--one:#0b5cb8;
--two:#b23a06}
@media(prefers-color-scheme:dark){
:root{--back:#15171a;--box:#1e2125;--text:#e6e6e6;--dim:#a3a7ac;--line:#3a3e44;--one:#6cb0ff;
--two:#ff9e64}}
body{background:var(--back);color:var(--text);font:16px/1.45 system-ui,sans-serif;
margin:0 auto;padding:1rem;max-width:60rem}
h1,h2{line-height:1.2;overflow-wrap:anywhere}h2{margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid var(--line);padding:.25rem .75rem .25rem 0;text-align:left;
vertical-align:top;overflow-wrap:anywhere;font-weight:400}
th{color:var(--dim)}meter{width:6rem}
a{color:var(--one)}
:focus-visible{outline:3px solid var(--one);outline-offset:2px}
figure{margin:1rem 0}figcaption{color:var(--dim)}
.l0{color:var(--one)}.l1{color:var(--two);margin-left:.6rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:0 1rem}
details{border-bottom:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
.dim{color:var(--dim)}
.flow{list-style:none;margin:0;padding:0;display:grid;gap:1.5rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,8rem),1fr))}
.flow li{position:relative;background:var(--box);border:1px solid var(--line);border-radius:.4rem;
border-top:.25rem solid var(--line);padding:.5rem .6rem;font-size:.9rem;overflow-wrap:anywhere}
.flow li.works{border-top-color:var(--one)}.flow li.waits{border-top-color:var(--two)}
.flow li+li::before{content:"→";position:absolute;left:-1.3rem;top:40%;color:var(--dim)}
.flow b,.flow span{display:block}.flow meter{width:100%}
.flow .state{font-weight:600}.works .state{color:var(--one)}.waits .state{color:var(--two)}
@media(max-width:40rem){.flow{grid-template-columns:1fr}
.flow li+li::before{content:"↓";left:50%;top:-1.45rem}}
nav,.bar{display:flex;flex-wrap:wrap;gap:.25rem 1rem;margin:.5rem 0}
.bar{position:sticky;top:0;z-index:1;background:var(--back);border-bottom:1px solid var(--line);
padding:.4rem 0;align-items:center}
button{font:inherit;color:var(--text);background:var(--box);border:1px solid var(--dim);
border-radius:.3rem;padding:.2rem .8rem;min-height:2.2rem}
"""
    + rollout_part.STYLE
    + plots.STYLE
)
