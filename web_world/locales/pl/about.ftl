skip-to-text = Przejdź do tekstu
nav-about = Jak to działa
about-page-title = Jak to działa: użycz Maca albo zleć mu pracę · Świat MLX
about-heading = Użycz Maca albo zleć mu pracę
about-lead = Wiele Maców stoi bezczynnie, a wielu ludzi potrzebuje odpowiedzi otwartych modeli. MLX Network łączy jednych z drugimi. Oto jak to działa i czego jeszcze nie potrafi.

about-what-title = Co to jest
about-whole = Zadania się nie dzieli. Jedna odpowiedź powstaje na jednym Macu. Żaden model nie jest rozłożony na Maki obcych ludzi.
about-scheduler = Koordynator zna pamięć i szybkość każdego Maca. Każde zadanie daje takiemu, który mu podoła.
about-lost = Gdy Mac wypadnie w połowie, inny pisze dalej od miejsca, w którym odpowiedź się urwała. Płaci się raz.
about-paid = Za zadania płaci się tokenami MLX. Właściciele je zarabiają, zlecający wydają. To kredyty na usługi: nie można ich kupić i nikt ich nie wypłaca.

about-share-text = Czytasz to na telefonie lub tablecie. Użycza się na Macu, więc wyślij sobie link.
about-share-button = Wyślij link na mojego Maca
about-share-subject = Użyczam Maca
about-share-body = Do otwarcia na Macu:
about-lend-join = Na Macu potrzebujesz Pythona { $python } lub nowszego i kopii kodu <bdi>MLX Network</bdi>. W jej folderze wpisz:
about-lend-approve = Mac pokaże kod. Potwierdź ze swojego konta, że jest Twój:
about-lend-watch = Teraz może przyjść praca. Możesz zobaczyć, co robi Mac, usunąć jego miejsce z mapy albo odejść:
about-lend-always = Mac użycza pamięci od uruchomienia programu do jego zatrzymania, czy przy nim siedzisz, czy nie. Nie zauważa jeszcze, że wracasz. Chcesz go dla siebie? Zatrzymaj program klawiszami <kbd>Ctrl-C</kbd>.
about-lend-safe = Nie otwiera żadnego portu i łączy się tylko z koordynatorem. Modele pobiera według stałego odcisku i nie uruchamia ich kodu.
about-lend-pay = Dostajesz zapłatę za to, co Twój Mac dostarczył, po odjęciu opłaty sieci. Nowym właścicielom przez pierwsze dni jest ona wstrzymana; widać, którego dnia przyjdzie.

about-send-title = Zleć pracę
about-send-key = Poproś o konto osobę, która prowadzi ten koordynator; razem z nim dostaniesz klucz. Potem wystarczy dowolny program do API <bdi>OpenAI</bdi>, na przykład:
about-send-cost = Zanim zadanie ruszy, blokowana jest najwyższa możliwa kwota. Potem płacisz za to, co przyszło, a reszta wraca. Modele z cenami i każdy koszt jako rachunek:
about-send-secret = Nie wysyłaj niczego, co ma zostać tajemnicą: właściciel Maca, który odpowiada, może to przeczytać.
about-send-more = Kto co może przeczytać

about-missing-title = Co jeszcze nie działa
about-missing-mac = Oprogramowanie jest młode. Autorzy uruchamiali je tylko na <bdi>Linuksie</bdi>, na żadnym prawdziwym Macu.
about-missing-presence = Użyczanie tylko pod Twoją nieobecność.
about-missing-pods = Kilka połączonych kablami Maców jako jeden (zespoły).
about-missing-checks = Sprawdzanie, czy Mac liczył uczciwie, dowód jego sprzętu i tryb zapieczętowany.
about-missing-other = Obrazy, narzędzia, dostrajanie. Renderowania i budowania programów nie planujemy.
