nav-ultra = Miejsce Ultra
ultra-page-title = Miejsce Ultra i jego warunki · Świat MLX
ultra-heading = Miejsce Ultra
ultra-lead = Miejsce to obietnica: przez jaką część doby użyczasz Maca. Płaci się za samą gotowość, obok tego, co płacą zadania. Miejsce Ultra obiecuje najwięcej i jest płatne najlepiej.
ultra-warning = Nic jeszcze nie sprawdza wyników. Dlatego żaden Mac nie dojdzie dziś do miejsca Ultra, a zmierzony Mac dostaje { $share } poniższych stawek.

ultra-seats-title = Trzy miejsca
ultra-seat = Miejsce
ultra-promise = Co obiecujesz
ultra-rate = MLX za punkt i godzinę
seat-idle = Zwykłe
seat-idle-promise = Nic. Jest płatne, dopóki załadowany jest model, o który ktoś prosi.
seat-dedicated = Stałe
seat-dedicated-promise = { $hours } na dobę przez { $days }. Twoje własne użycie nie przerywa pracy.
seat-ultra = Ultra
seat-ultra-promise = To samo i wszystko, co poniżej.
ultra-points = Mac ma punkt za każde { $bandwidth } przepustowości, według pomiaru i nigdy ponad dane producenta, oraz punkt za każde użyczone { $memory }. Ułamki punktu też się liczą.

ultra-conditions-title = Warunki
condition-one = <strong>Jedno miejsce na Maca.</strong> Ta sama maszyna nie zajmuje innego.
condition-hours = <strong>{ $hours } na dobę.</strong> Tyle jest użyczany, codziennie.
condition-days = <strong>Przez { $days }.</strong> Możesz wycofać się w każdej chwili, od następnych dziesięciu minut. Co zarobione, zostaje Twoje.
condition-uninterrupted = <strong>Bez przerywania.</strong> Gdy sam korzystasz z Maca, praca sieci trwa dalej.
condition-tests = <strong>Testy własne na rozgrzanym Macu: { $tests }.</strong> Sieć prosi o nie, gdy Mac jest wolny, i ponawia je co sześć godzin.
condition-bandwidth = <strong>{ $bandwidth } w każdym z nich.</strong> Osiągają to tylko układy Ultra.
condition-memory = <strong>{ $share } pamięci, nie mniej niż { $memory }.</strong> Tyle jest użyczane.
condition-checks = <strong>Sprawdzone wyniki z rzędu: { $checks }.</strong> Gdy jeden się nie obroni, liczenie zaczyna się od nowa.

ultra-service-title = Gdy obietnica jest dotrzymana i gdy nie
ultra-service-level = Dotrzymane { $kept } obiecanego czasu lub więcej: { $paid } zapłaty.
ultra-service-below = Mniej: zapłata jak za miejsce zwykłe.
ultra-upkeep = Prace zapowiedziane przed ich początkiem liczą się jako dotrzymane: { $time } w tygodniu.

ultra-pay-title = Zapłata za godzinę gotowości, w MLX
column-mac = Mac
ultra-lends = użycza { $memory }
ultra-pay-note = Tyle wynosi zapłata, jeśli pula jest pełna, wyniki są sprawdzane, a obietnica dotrzymana w całości. Gdy wszystkie roszczenia przekraczają to, co daje pula, wszystkie maleją tak samo. MLX to kredyty na usługi; nikt ich nie wypłaca.

ultra-ask-title = Poproś o nie
ultra-ask-text = Poproś o miejsce, zobacz, czego brakuje i jak to naprawić, zapowiedz prace (w minutach) albo się wycofaj:
ultra-ask-back = Kto prosi o więcej, niż Mac osiąga, zachowuje najwyższe miejsce, które osiąga, a tamto dostanie, gdy tylko będzie mógł.
