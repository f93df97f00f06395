nav-status = الحالة
status-page-title = الحالة: كيف تسير الشبكة الآن · عالم MLX
status-heading = الحالة
status-lead = كيف يسير هذا المنسّق وشبكته. تتجدد الأرقام مرة كل دقيقة.
status-now-title = الآن
status-at = كما في { $time }. إذا كان ذلك قديمًا فالمنسّق يعمل لكنه لا يستطيع قراءة قاعدة بياناته.
status-up = يعمل منذ
status-macs = أجهزة ماك
status-job = آخر مهمة سُوّيت
status-job-note = بدقة دقيقة
status-job-none = لا شيء منذ البدء
status-withheld = لا يُذكر بعد
status-checkpoint = آخر نقطة تحقق في الدفتر
status-entries = { $entries ->
    [zero] لا قيود
    [one] قيد واحد
    [two] قيدان
    [few] { $entries } قيود
    [many] { $entries } قيدًا
   *[other] { $entries } قيد
}
status-root = جذرها، وبه يستطيع أي أحد التحقق من الدفتر:
status-look-title = انظر بنفسك
status-healthz = يجيب ما دام البرنامج يعمل.
status-readyz = يجيب ما دامت قاعدة البيانات تجيب.
status-snapshot = فيه كل أرقام الخريطة.
status-ledger = أحدث نقطة تحقق موقّعة.
status-limits-title = ما لا تستطيع هذه الصفحة قوله
status-limits = تأتي الصفحة من المنسّق نفسه، فإذا توقف توقفت معه. ولا يوجد بعد سجل للأعطال.
