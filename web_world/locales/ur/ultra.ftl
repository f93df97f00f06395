nav-ultra = الٹرا نشست
ultra-page-title = الٹرا نشست اور اس کی شرطیں · MLX دنیا
ultra-heading = الٹرا نشست
ultra-lead = نشست ایک وعدہ ہے: آپ دن کا کتنا حصہ میک دیں گے۔ کام کی اجرت کے علاوہ تیار رہنے کی بھی اجرت ملتی ہے۔ الٹرا نشست کا وعدہ سب سے بڑا ہے اور اجرت بھی۔
ultra-warning = ابھی کوئی چیز نتیجوں کو نہیں پرکھتی۔ اس لیے آج کوئی میک الٹرا نشست تک نہیں پہنچتا، اور ناپے ہوئے میک کو نیچے کی اجرت کا { $share } ملتا ہے۔

ultra-seats-title = تین نشستیں
ultra-seat = نشست
ultra-promise = آپ کا وعدہ
ultra-rate = فی پوائنٹ فی گھنٹہ MLX
seat-idle = عام
seat-idle-promise = کچھ نہیں۔ اجرت تب ملتی ہے جب کوئی مانگا ہوا ماڈل چڑھا ہو۔
seat-dedicated = مخصوص
seat-dedicated-promise = ہر دن { $hours }، { $days } تک۔ آپ کا اپنا استعمال کام نہیں روکتا۔
seat-ultra = الٹرا
seat-ultra-promise = یہی، اور نیچے کی سب شرطیں۔
ultra-points = میموری کی رفتار کے ہر { $bandwidth } پر ایک پوائنٹ، ناپ کے مطابق مگر بنانے والے کے عدد سے زیادہ نہیں، اور دی گئی میموری کے ہر { $memory } پر ایک۔ پوائنٹ کے حصے بھی گنے جاتے ہیں۔

ultra-conditions-title = شرطیں
condition-one = <strong>ایک میک، ایک نشست۔</strong> اسی مشین کی کوئی اور نشست نہ ہو۔
condition-hours = <strong>روزانہ { $hours }۔</strong> ہر دن اتنی دیر میک دیا جائے۔
condition-days = <strong>{ $days } تک۔</strong> آپ کسی بھی وقت پیچھے ہٹ سکتے ہیں، اگلے دس منٹ سے۔ جو کمایا وہ آپ کا ہے۔
condition-uninterrupted = <strong>بلا رکاوٹ۔</strong> آپ میک استعمال کریں تو بھی نیٹ ورک کا کام نہیں رکتا۔
condition-tests = <strong>گرم میک پر اپنے امتحان: { $tests }۔</strong> نیٹ ورک یہ خالی میک سے مانگتا ہے، اور ہر چھ گھنٹے بعد پھر۔
condition-bandwidth = <strong>ہر امتحان میں { $bandwidth }۔</strong> یہاں تک صرف الٹرا چپ پہنچتی ہے۔
condition-memory = <strong>میموری کا { $share }، اور کم از کم { $memory }۔</strong> اتنی دی جائے۔
condition-checks = <strong>لگاتار پرکھے ہوئے نتیجے: { $checks }۔</strong> ایک بھی غلط نکلا تو گنتی نئے سرے سے۔

ultra-service-title = وعدہ پورا، یا ادھورا
ultra-service-level = وعدے کا { $kept } یا زیادہ وقت پورا: اجرت کا { $paid }۔
ultra-service-below = اس سے کم: عام نشست کی اجرت۔
ultra-upkeep = دیکھ بھال جس کا آپ پہلے سے بتا دیں پورے وقت میں گنی جاتی ہے: ہفتے میں { $time }۔

ultra-pay-title = ایک گھنٹہ تیار رہنے کی اجرت، MLX میں
column-mac = میک
ultra-lends = { $memory } دیتا ہے
ultra-pay-note = یہ اجرت تب ہے جب فنڈ بھرا ہو، نتیجے پرکھے جائیں اور پورا وعدہ نبھے۔ سب کے دعوے فنڈ سے زیادہ ہوں تو سب برابر کے حساب سے گھٹتے ہیں۔ MLX خدمت کے کریڈٹ ہیں؛ کوئی انہیں نقد نہیں دیتا۔

ultra-ask-title = نشست مانگیں
ultra-ask-text = نشست مانگیں، دیکھیں کیا کمی ہے اور کیسے پوری ہو، دیکھ بھال کا بتائیں (منٹوں میں)، یا پیچھے ہٹیں:
ultra-ask-back = جو میک کی پہنچ سے زیادہ مانگے اسے وہ سب سے اونچی نشست ملتی ہے جہاں میک پہنچتا ہے، اور دوسری جیسے ہی ممکن ہو۔
