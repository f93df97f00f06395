macs = { $count ->
    [one] { $count } میک
   *[other] { $count } میک
}
macs-area = { $count ->
    [one] اس علاقے میں { $count } میک
   *[other] اس علاقے میں { $count } میک
}
macs-country = { $count ->
    [one] اس ملک میں علاقے کے بغیر { $count } میک
   *[other] اس ملک میں علاقے کے بغیر { $count } میک
}
at-least-one = کم از کم ایک میک
at-least = کم از کم { $count }
share-working = { $share } کام کر رہے ہیں
ultra-count = { $count ->
    [one] { $count } الٹرا نشست
   *[other] { $count } الٹرا نشستیں
}
pod-count = { $count ->
    [one] جتھوں میں { $count } میک
   *[other] جتھوں میں { $count } میک
}
stars = { $count ->
    [one] زمین پر کہیں { $count } میک
   *[other] زمین پر کہیں { $count } میک
}
globe-label = گلوب جس پر { $lights } روشنیاں ہیں، ہر میک کی ایک۔ ملکوں کا جدول بھی یہی بتاتا ہے۔
flat-label = سیدھا نقشہ جس پر { $lights } روشنیاں ہیں، ہر میک کی ایک۔ ملکوں کا جدول بھی یہی بتاتا ہے۔
zoom-in = قریب کریں
zoom-out = دور کریں
show-flat = سیدھا نقشہ
show-globe = گلوب
reset-view = پوری زمین
live-on = براہِ راست
live-off = براہِ راست نہیں: تصویر کچھ پہلے کی ہے
not-told = –
measure = { $value } { $unit }
minutes-summary = ابھی { $now }، زیادہ سے زیادہ { $peak }
