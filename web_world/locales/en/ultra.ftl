nav-ultra = Ultra seat
ultra-page-title = The Ultra seat, and what it asks for · MLX World
ultra-heading = The Ultra seat
ultra-lead = A seat is a promise of how much of the day you lend a Mac. Standing ready is paid, on top of what jobs pay. The Ultra seat promises the most and is paid the most.
ultra-warning = Nothing checks results yet. So no Mac can reach the Ultra seat today, and a measured Mac is paid { $share } of the rates below.

ultra-seats-title = Three seats
ultra-seat = Seat
ultra-promise = What you promise
ultra-rate = MLX per point and hour
seat-idle = Idle
seat-idle-promise = Nothing. It is paid while a model that is in demand is loaded.
seat-dedicated = Dedicated
seat-dedicated-promise = { $hours } of every day, for { $days }. Your own use does not interrupt the work.
seat-ultra = Ultra
seat-ultra-promise = The same, and all the conditions below.
ultra-points = A Mac has one point for each { $bandwidth } of bandwidth, by what was measured and never above the maker’s figure, and one for each { $memory } that it lends. Parts of a point count.

ultra-conditions-title = What it asks for
condition-one = <strong>One seat a Mac.</strong> The same machine holds no other seat.
condition-hours = <strong>{ $hours } a day.</strong> That is how long it is lent, every day.
condition-days = <strong>For { $days }.</strong> You may step back at any time, from the next ten minutes on. What is earned stays yours.
condition-uninterrupted = <strong>No interruption.</strong> Your own use of the Mac does not stop the network’s work.
condition-tests = <strong>Self-tests on a warm Mac: { $tests }.</strong> The network asks for them while the Mac is idle, and again every six hours.
condition-bandwidth = <strong>{ $bandwidth } in each of them.</strong> Only Ultra chips reach that.
condition-memory = <strong>{ $share } of the memory, and at least { $memory }.</strong> That much is lent.
condition-checks = <strong>Checked results in a row: { $checks }.</strong> If one fails, the count starts again.

ultra-service-title = If the promise is kept, and if not
ultra-service-level = { $kept } or more of the promised time kept: { $paid } of the pay.
ultra-service-below = Less than that: paid as an idle seat.
ultra-upkeep = Upkeep that you announce before it begins counts as kept: { $time } a week.

ultra-pay-title = Pay for an hour of standing ready, in MLX
column-mac = Mac
ultra-lends = lends { $memory }
ultra-pay-note = This is what is paid if the pool is full, results are checked and the whole promise is kept. If all claims together exceed what the pool gives, all are cut by the same share. MLX are service credits; nobody pays them out.

ultra-ask-title = Ask for it
ultra-ask-text = Ask for the seat, see what is still missing and how to fix it, announce upkeep (in minutes), or step back:
ultra-ask-back = If you ask for more than the Mac qualifies for, it keeps the highest seat that it does qualify for, and gets the other as soon as it can.
