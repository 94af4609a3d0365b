from counting import CountingEngine
from protocol_checks import check_protocol

from asyncrl.engines.options import EngineOptions


async def test_it_obeys_the_protocol() -> None:
    engine = CountingEngine(EngineOptions(slots=2, context_tokens=64, chunk_tokens=4), 40)
    await check_protocol(engine, weights=None, keeps_versions=False)
