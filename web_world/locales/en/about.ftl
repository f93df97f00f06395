skip-to-text = Skip to the text
nav-about = How it works
about-page-title = How it works: lend a Mac or send it work · MLX World
about-heading = Lend a Mac, or send it work
about-lead = Many Macs stand idle. Many people need answers from open models. MLX Network brings the two together. Here is how, and what does not work yet.

about-what-title = What it is
about-whole = A job stays whole. One answer is made on one Mac. No model is spread over strangers’ Macs.
about-scheduler = A scheduler, the coordinator, knows each Mac’s memory and speed. It gives every job to a Mac that can do it.
about-lost = If that Mac drops out halfway, another one continues where the answer stopped. You are charged once.
about-paid = Jobs are paid in MLX tokens. Owners earn them, senders spend them. They are service credits: you cannot buy them, and nobody pays them out.

about-share-text = You are reading this on a phone or tablet. Lending is done on the Mac, so send yourself the link.
about-share-button = Send the link to my Mac
about-share-subject = Lend my Mac
about-share-body = To be opened on the Mac:
about-lend-join = On the Mac you need Python { $python } or later and a checkout of <bdi>MLX Network</bdi>. In its folder, type:
about-lend-approve = The Mac shows a code. Confirm from your account that the Mac is yours:
about-lend-watch = Now work can arrive. You can see what the Mac does, take its place off the map, or leave:
about-lend-always = The Mac lends its memory from the start of the program to its end, whether you sit at it or not. It does not notice yet when you come back. To have it for yourself, stop the program with <kbd>Ctrl-C</kbd>.
about-lend-safe = It opens no port and calls only the coordinator. Models are fetched by a fixed fingerprint, and none of their code is run.
about-lend-pay = You are paid for what your Mac delivers, less the network’s fee. A new owner’s pay is held back for the first days; you see on which day it comes.

about-send-title = Send work
about-send-key = Ask whoever runs this coordinator for an account; its key comes with it. Then every client for <bdi>OpenAI’s</bdi> API will do, for example:
about-send-cost = Before a job runs, the most it may cost is held. Afterwards you pay for what you got, and the rest is released. To see models with their prices, and how each cost adds up:
about-send-secret = Send nothing that must stay secret: the owner of the Mac that answers can read it.
about-send-more = Who can read what

about-missing-title = What does not work yet
about-missing-mac = The software is young. Its authors have run it on <bdi>Linux</bdi> only, never on a real Mac.
about-missing-presence = Lending only while you are away.
about-missing-pods = Several cabled Macs as one (pods).
about-missing-checks = Checks whether a Mac computed honestly, proof of its hardware, and a sealed mode.
about-missing-other = Pictures, tools, fine-tuning. Rendering and building software are not planned.
