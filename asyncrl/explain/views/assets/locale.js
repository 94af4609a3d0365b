// Gives the browser a language that Intl knows. With LANG=C some say "en-US@posix", which no
// standard has, and a library that formats numbers in it would not start.
"use strict";

try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
}
