nav-models = النماذج
models-page-title = النماذج والطلب حسب فئة الجهاز · عالم MLX
models-heading = النماذج والطلب
models-lead = أي نماذج تعمل هنا، وعلى أي أجهزة، وكم سرعتها المتوقّعة، وكم تكلّف، وكم طُلب منها ودُفع ثمنه.
models-served-title = المقدَّمة الآن
models-none = لا تقدّم هذه الشبكة أي نموذج بعد.
models-model = النموذج
models-size = الأوزان: { $size }
models-least = أصغر جهاز
models-macs = أجهزة تستطيع أخذه الآن، على الأقل
models-day = رموز دُفع ثمنها، آخر يوم
models-month = رموز دُفع ثمنها، ثلاثون يومًا
models-demand-note = يُذكر الرقم حين يكون وراءه خمسة أشخاص مختلفين، ويُجدَّد، كل ساعة على الأكثر، حين يتغيّر خمسة منهم. والرموز مقرّبة إلى الأدنى؛ والأيام التي أرسل فيها أقل من خمسة متروكة. والشرطة تعني: لا يُذكر. وعمل المرء لنفسه والعمل العام ليسا طلبًا.
models-too-large = لا شيء
models-classes-title = ما تستطيع كل فئة أن تقدّمه
models-memory = الذاكرة
models-fitting = نماذج تتّسع لها
models-largest = أكبرها
models-earned = MLX للجهاز، ثلاثون يومًا
models-classes-note = محسوب على الفهرس كله، والطلب والجواب معًا { $tokens } رمزًا، وبقدر ما يسمح macOS للنموذج من الذاكرة.
models-earned-note = ما كسبه جهاز من الفئة في المتوسط من عمل مسوّى لآخرين؛ وتُحسب معها الأجهزة التي بلا عمل. وحدات MLX أرصدة لخدمات هذه الشبكة ولا يمكن سحبها.
models-earned-none = لا يمكن ذكر دخل بعد: لم يُدفع لخمسة مالكين في أي فئة أجر عمل مسوّى في آخر ثلاثين يومًا. لذلك لا رقم هناك.
models-calculator = تشتري أم تعير أم ترسل؟ الحاسبة
models-speeds-title = السرعة والسعر
models-speeds-note = رموز الجواب في الثانية، حسب التوقّع. لا يزيد خطأ نصف التوقّعات على { $half }، وتسعة أعشارها على { $most }. والأسعار بوحدة MLX لكل مليون رمز.
models-price-read = MLX للمقروءة
models-price-written = MLX للمكتوبة
models-known-title = معروفة ولا تُقدَّم بعد
models-known-text = أحجامها وأسعارها محدَّدة. وتُقدَّم حالما تُثبَّت ملفاتها ببصمة.
models-from = من { $memory }
models-too-large-title = أكبر من أي جهاز منفرد
models-count = { $count ->
    [zero] لا نماذج
    [one] نموذج واحد
    [two] نموذجان
    [few] { $count } نماذج
    [many] { $count } نموذجًا
   *[other] { $count } نموذج
}
