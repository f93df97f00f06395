nav-status = Stan
status-page-title = Stan: jak sieć działa teraz · Świat MLX
status-heading = Stan
status-lead = Jak działają ten koordynator i jego sieć. Liczby odświeżają się raz na minutę.
status-now-title = Teraz
status-at = Stan z { $time }. Jeśli to dawno, koordynator działa, ale nie może czytać swojej bazy danych.
status-up = Działa od
status-macs = Maki
status-job = Ostatnie rozliczone zadanie
status-job-note = z dokładnością do minuty
status-job-none = Żadnego od startu
status-withheld = Jeszcze nie podajemy
status-checkpoint = Ostatni podpisany stan księgi
status-entries = { $entries ->
    [one] { $entries } wpis
    [few] { $entries } wpisy
    [many] { $entries } wpisów
   *[other] { $entries } wpisu
}
status-root = Jego korzeń, którym każdy może sprawdzić księgę:
status-look-title = Sprawdź samodzielnie
status-healthz = odpowiada, dopóki działa proces.
status-readyz = odpowiada, dopóki działa baza danych.
status-snapshot = ma wszystkie liczby z mapy.
status-ledger = to najnowszy podpisany stan księgi.
status-limits-title = Czego ta strona nie powie
status-limits = Pochodzi od samego koordynatora. Gdy on nie działa, nie ma i jej. Historii awarii jeszcze nie ma.
