nav-ultra = Ultra seat
ultra-page-title = The Ultra seat, and what it asks for · MLX World
ultra-heading = The Ultra seat
ultra-lead = A seat is a promise: how much of the day you lend a Mac. It is paid for standing ready, beside what jobs pay. The Ultra seat promises most and is paid most.
ultra-warning = Nothing checks results yet. So no Mac can come to the Ultra seat today, and a measured Mac is paid { $share } of the rates below.

ultra-seats-title = Three seats
ultra-seat = Seat
ultra-promise = What you promise
ultra-rate = MLX per point and hour
seat-idle = Idle
seat-idle-promise = Nothing. It is paid while a model that is asked for is loaded.
seat-dedicated = Dedicated
seat-dedicated-promise = { $hours } of every day, for { $days }. Your own use does not interrupt the work.
seat-ultra = Ultra
seat-ultra-promise = The same, and all that stands below.
ultra-points = A Mac has one point for each { $bandwidth } of bandwidth, by what was measured and never above the maker’s figure, and one for each { $memory } that it lends. Parts of a point count.

ultra-conditions-title = What it asks for
condition-one = <strong>One seat a Mac.</strong> The same machine holds no other seat.
condition-hours = <strong>{ $hours } a day.</strong> So long it is lent, every day.
condition-days = <strong>For { $days }.</strong> You may step back at any time, from the next ten minutes on. What is earned stays yours.
condition-uninterrupted = <strong>No interruption.</strong> Your own use of the Mac does not stop the network’s work.
condition-tests = <strong>Self-tests on a warm Mac: { $tests }.</strong> The network asks for them while the Mac is idle, and again every six hours.
condition-bandwidth = <strong>{ $bandwidth } in each of them.</strong> Only Ultra chips reach that.
condition-memory = <strong>{ $share } of the memory, and at least { $memory }.</strong> That much is lent.
condition-checks = <strong>Checked results in a row: { $checks }.</strong> One that does not hold, and counting starts anew.

ultra-service-title = Kept, and not kept
ultra-service-level = { $kept } or more of the promised time kept: { $paid } of the pay.
ultra-service-below = Less than that: paid as an idle seat. A broken promise is none.
ultra-upkeep = Upkeep that you announce before it begins counts as kept: { $time } a week.

ultra-pay-title = What standing ready brings in an hour
column-mac = Mac
ultra-lends = lends { $memory }
ultra-pay-note = In MLX, if the pool is full, results are checked and the whole promise is kept. If all claims together are more than the pool gives, all are cut alike. MLX are service credits; nobody pays them out.

ultra-ask-title = Ask for it
ultra-ask-text = Ask for the seat, see what is still missing and how to mend it, announce upkeep (in minutes), or step back:
ultra-ask-back = Who asks for more than the Mac comes to keeps the highest seat that it does come to, and gets the other as soon as it can.
