nav-clusters = Klastry
clusters-page-title = Klastry Maców do AI: co robią, a co się tylko mówi · Świat MLX
clusters-heading = Klastry Maców do AI
clusters-lead = Kilka Maców na jednym biurku uruchomi model, którego żaden z nich by nie pomieścił. Oto co się zmieniło, jak zbudować klaster i co o głośnych twierdzeniach mówią opublikowane próby.
clusters-warning = Ta sieć nie umie jeszcze przyjąć klastra jako jednego Maca. Takie zespoły są w planach, ale nie są zbudowane. Każdego Maca z klastra można użyczyć osobno.

clusters-changed-title = Co zmieniło RDMA przez Thunderbolt
clusters-changed-before = Maki zawsze można było połączyć kablem. Każda wiadomość szła jednak przez kod sieciowy systemu, a model podzielony między Maki wysyła ich wiele na każdy token. Czas schodził mu na czekaniu.
clusters-changed-now = Dzięki <bdi>RDMA</bdi> Mac pisze prosto do pamięci drugiego, z pominięciem tego kodu. Potrzeba systemu <bdi>macOS { $macos }</bdi> lub nowszego i piątej generacji Thunderbolta w Macu z układem Apple.

clusters-split-title = Dwa sposoby podziału modelu
clusters-split-pipeline = <strong>Warstwami (potok).</strong> Każdy Mac trzyma część warstw, a odpowiedź przechodzi przez wszystkie po kolei. Nie jest szybciej niż na jednym, ale mieszczą się większe modele. Długie pytania czytane są szybciej.
clusters-split-tensor = <strong>W poprzek warstw (tensorowo).</strong> Każdy Mac trzyma kawałek każdej warstwy i wszystkie pracują naraz. Po każdym kawałku muszą wymienić wyniki, więc opłaca się to tylko przez <bdi>RDMA</bdi>.
clusters-split-rule = <strong>Pierwsza zasada:</strong> jeśli model mieści się na jednym Macu, użyj jednego Maca.

clusters-build-title = Budowa krok po kroku
clusters-build-cables = Ta sama wersja <bdi>macOS</bdi> na wszystkich, { $macos } lub nowsza. Połącz każdego Maca z każdym, bez stacji dokującej. Liczba kabli: dla dwóch Maców { $two }, dla trzech { $three }, dla czterech { $four }.
clusters-build-rdma = Uruchom każdego Maca w trybie odtwarzania macOS, otwórz tam Terminal, wpisz to i uruchom ponownie:
clusters-build-devices = Potem każdy port ma swoje urządzenie:
clusters-build-install = Zainstaluj tę samą wersję <bdi>mlx-lm</bdi> na wszystkich i pozwól pierwszemu Macowi łączyć się z pozostałymi przez <bdi>ssh</bdi> bez hasła:
clusters-build-config = Niech MLX ustawi połączenia i zapisze, kto z kim jest złączony. Prosi o uprawnienia administratora i zmienia ustawienia sieci:
clusters-build-run = Uruchom model na wszystkich Macach naraz:
clusters-build-check = Zadaj to samo pytanie krótko i bardzo długo, na jednym Macu i na klastrze. Zgłaszano błędne odpowiedzi na długie pytania, więc ufaj klastrowi dopiero, gdy oba się zgodzą.

clusters-network-title = Od klastra do sieci
clusters-network-plan = Plan jest taki: właściciel oferuje połączone Maki jako jeden zespół, sieć mierzy jego szybkość i poprawność, a potem daje mu zadania, które tylko zespół pomieści. Nic z tego nie jest zbudowane.
clusters-network-today = Dziś każdy Mac dołącza osobno, a zadanie zostaje na jednym Macu.

clusters-not-title = Czym klaster nie jest
clusters-not-memory = <strong>Nie jest jedną pamięcią.</strong> Każdy Mac trzyma swoją część. Model trzeba pociąć tak, żeby części się zmieściły.
clusters-not-datacentre = <strong>Nie jest kartą z centrum danych.</strong> Mieści duże modele za mniejsze pieniądze. Nie liczy jednak tak szybko, zwłaszcza dla wielu osób naraz.
clusters-not-faster = <strong>Nie zawsze jest szybszy.</strong> Model, który mieści się na jednym Macu, po podziale często zwalnia.
clusters-not-other = <strong>Nie jest do wszystkiego.</strong> W tej sieci działają modele językowe. Nie renderuje ona i nie buduje programów.

clusters-claims-title = Znane twierdzenia
clusters-claims-note = Niczego z tego nie mierzyliśmy sami. Liczby są ze źródeł; przy tych, które z nich obliczono, tak napisano.
clusters-claim = Twierdzenie i kto je podał
clusters-shown = Co pokazują opublikowane próby
clusters-verdict = Ocena
verdict-true = Zgadza się.
verdict-partly = Częściowo.
verdict-doubtful = Wątpliwe.
claim-latency = Opóźnienie spada z { $before } do mniej niż { $after }
claim-latency-shown = Jedna wymiana między dwoma Macami trwała { $wire }. W działającym modelu każda kosztuje od { $low } do { $high }, jak wynika z opublikowanych szybkości.
claim-latency-verdict = Prawda o kablu; model czeka dłużej.
claim-kimi = { $claimed } dla { $model } na czterech Macach { $chip }
claim-kimi-shown = Wykres, z którego to pochodzi, pokazuje { $best } dla pytań nieznanej długości. Inne laboratorium uzyskało { $other } z pokrewnym modelem.
claim-kimi-verdict = Prawie, raz. Licz na połowę.
claim-speedup = { $two } szybciej na dwóch Macach, { $four } na czterech
claim-speedup-shown = Przy pisaniu odpowiedzi wykres pokazuje { $chart_two } i { $chart_four }, a inne laboratorium na czterech od { $worst } do { $dense }. Przy czytaniu długich pytań od { $read_low } do { $read_high } na czterech.
claim-speedup-verdict = Przy czytaniu pytań, nie przy pisaniu odpowiedzi.
claim-session = Prawie { $claimed } szybciej na czterech Macach
claim-session-shown = Nie znamy prób innych osób. Z obliczeń dla tego modelu: od { $low } do { $high } bez kwantyzacji, od { $small_low } do { $small_high } przy połowie rozmiaru.
claim-session-verdict = Prawdopodobne dla jednego gęstego modelu; to nie reguła.
claim-link = { $claimed } kablem
claim-link-shown = Duże bloki osiągają { $best } między dwoma Macami; inne laboratorium widziało { $other }.
claim-link-verdict = Dużymi blokami prawie osiągalne. Dla odpowiedzi ważniejsze jest opóźnienie.
claim-power = Cztery Maki na mniej niż { $claimed }
claim-power-shown = Producent podaje do { $maker } na jednego takiego Maca. Z gniazdka jeden pobierał przy pracy od { $low } do { $high }.
claim-power-verdict = Może podczas tamtego pokazu. Licz na { $all }.

clusters-questions-title = Pytania
question-mixed = Czy Maki mogą być różne?
question-mixed-answer = Mogą. Ale przy podziale w poprzek warstw każdy dostaje tyle samo, więc najmniejszy decyduje, co się zmieści, a najwolniejszy, jak szybko pójdzie.
question-old = A starszy Thunderbolt albo Ethernet?
question-old-answer = Podział warstwami na nich działa. Podział w poprzek warstw zwykle spowalnia tam model.
question-far = Dlaczego nie przez internet?
question-far-answer = Wiadomość idzie tam tysiące razy dłużej niż kablem, a każdy token potrzebuje ich wielu. Dlatego ta sieć daje całe zadanie jednemu Macowi.
question-buy = Czy warto go kupić?
question-buy-answer = Nie po to, żeby tu zarabiać: tokeny to kredyty na usługi i nikt ich nie wypłaca. Kup, jeśli potrzebujesz na własnym biurku modelu, którego jeden Mac nie pomieści.
