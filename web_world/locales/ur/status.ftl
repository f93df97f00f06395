nav-status = حالت
status-page-title = حالت: نیٹ ورک ابھی کیسا ہے · MLX دنیا
status-heading = حالت
status-lead = یہ منتظم اور اس کا نیٹ ورک کیسے چل رہے ہیں۔ اعداد ہر منٹ تازہ ہوتے ہیں۔
status-now-title = ابھی
status-at = { $time } کی حالت۔ اگر یہ بہت پہلے کی ہے تو منتظم چل رہا ہے مگر اپنا ڈیٹا بیس نہیں پڑھ سکتا۔
status-up = کب سے چل رہا ہے
status-macs = میک
status-job = آخری کام جس کا حساب ہوا
status-job-note = منٹ کی حد تک درست
status-job-none = شروع ہونے سے اب تک کوئی نہیں
status-withheld = ابھی نہیں بتایا جاتا
status-checkpoint = کھاتے کا آخری دستخط
status-entries = { $entries ->
    [one] { $entries } اندراج
   *[other] { $entries } اندراجات
}
status-root = اس کی جڑ، جس سے کوئی بھی کھاتہ پرکھ سکتا ہے:
status-look-title = خود دیکھیں
status-healthz = تب تک جواب دیتا ہے جب تک پروگرام چلے۔
status-readyz = تب تک جواب دیتا ہے جب تک ڈیٹا بیس چلے۔
status-snapshot = میں نقشے کے سب اعداد ہیں۔
status-ledger = تازہ ترین دستخط ہے۔
status-limits-title = یہ صفحہ کیا نہیں بتا سکتا
status-limits = یہ خود منتظم سے آتا ہے۔ وہ بند ہو تو یہ بھی بند۔ خرابیوں کی تاریخ ابھی نہیں ہے۔
