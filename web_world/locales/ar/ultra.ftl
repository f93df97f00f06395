nav-ultra = مقعد ألترا
ultra-page-title = مقعد ألترا وشروطه · عالم MLX
ultra-heading = مقعد ألترا
ultra-lead = المقعد وعد: كم من اليوم تعير جهازك. ويُدفع أجر الاستعداد، إلى جانب ما تدفعه المهام. مقعد ألترا أكثر وعدًا وأعلى أجرًا.
ultra-warning = لا شيء يتحقق من النتائج بعد. لذلك لا يصل أي جهاز إلى مقعد ألترا اليوم، ويأخذ الجهاز المقيس { $share } من الأجور المذكورة.

ultra-seats-title = ثلاثة مقاعد
ultra-seat = المقعد
ultra-promise = ما تعِد به
ultra-rate = MLX لكل نقطة وساعة
seat-idle = عادي
seat-idle-promise = لا شيء. يُدفع أجره ما دام نموذج مطلوب محمّلًا.
seat-dedicated = مخصَّص
seat-dedicated-promise = { $hours } من كل يوم، ولمدة { $days }. استعمالك الخاص لا يقطع العمل.
seat-ultra = ألترا
seat-ultra-promise = الشيء نفسه، وكل ما يأتي أدناه.
ultra-points = للجهاز نقطة عن كل { $bandwidth } من سرعة الذاكرة، حسب القياس ودون أن تزيد على رقم الصانع، ونقطة عن كل { $memory } يعيرها. وأجزاء النقطة تُحسب.

ultra-conditions-title = شروطه
condition-one = <strong>مقعد واحد للجهاز.</strong> لا يشغل الجهاز نفسه مقعدًا آخر.
condition-hours = <strong>{ $hours } يوميًا.</strong> هذه مدة إعارته كل يوم.
condition-days = <strong>لمدة { $days }.</strong> يمكنك التراجع متى شئت، ويسري ذلك من الدقائق العشر التالية. وما كسبته يبقى لك.
condition-uninterrupted = <strong>بلا انقطاع.</strong> استعمالك للجهاز لا يوقف عمل الشبكة.
condition-tests = <strong>اختبارات ذاتية والجهاز ساخن: { $tests }.</strong> تطلبها الشبكة حين يكون الجهاز بلا عمل، وتعيدها كل ست ساعات.
condition-bandwidth = <strong>{ $bandwidth } في كل اختبار.</strong> لا تبلغ ذلك إلا رقائق ألترا.
condition-memory = <strong>{ $share } من الذاكرة، ولا أقل من { $memory }.</strong> هذا ما يُعار.
condition-checks = <strong>نتائج متتالية جرى التحقق منها: { $checks }.</strong> نتيجة واحدة لا تصمد تعيد العد من البداية.

ultra-service-title = إذا حُفظ الوعد، وإذا لم يُحفظ
ultra-service-level = إذا حُفظ { $kept } أو أكثر من الوقت الموعود: { $paid } من الأجر.
ultra-service-below = أقل من ذلك: أجر المقعد العادي.
ultra-upkeep = الصيانة التي تعلنها قبل بدئها تُحسب وفاءً: { $time } في الأسبوع.

ultra-pay-title = أجر ساعة استعداد، بوحدة MLX
column-mac = الجهاز
ultra-lends = يعير { $memory }
ultra-pay-note = هذا ما يُدفع إذا كان الصندوق مليئًا وجرى التحقق من النتائج وحُفظ الوعد كله. وإذا زادت المستحقات كلها على ما يعطيه الصندوق خُفضت جميعها بالنسبة نفسها. وحدات MLX أرصدة خدمات لا يصرفها أحد نقدًا.

ultra-ask-title = اطلبه
ultra-ask-text = اطلب المقعد، أو انظر ما ينقص وكيف يُصلح، أو أعلن صيانة (بالدقائق)، أو تراجع:
ultra-ask-back = من يطلب أكثر مما يبلغه جهازه يبقى له أعلى مقعد يبلغه، ويأخذ الآخر حالما يستطيع.
