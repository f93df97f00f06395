nav-clusters = Clusters
clusters-page-title = Mac AI clusters: what they do, and what is only said · MLX World
clusters-heading = Mac AI clusters
clusters-lead = Several Macs on one desk can run a model that none of them could hold alone. Here is what changed, how to build a cluster, and how well-known claims compare with published runs.
clusters-warning = This network cannot take a cluster as one Mac yet. Such pods are planned and not built. Each Mac of a cluster can be lent by itself.

clusters-changed-title = What RDMA over Thunderbolt changed
clusters-changed-before = Macs could always be cabled together. But every message went through the system’s network code, and a model split over Macs sends many messages for each token. It spent its time waiting.
clusters-changed-now = With <bdi>RDMA</bdi> a Mac writes into the memory of another one, past that code. It needs <bdi>macOS { $macos }</bdi> or later and Thunderbolt’s fifth generation on Apple silicon.

clusters-split-title = Two ways to split a model
clusters-split-pipeline = <strong>By layers (pipeline).</strong> Each Mac holds some of the layers, and an answer passes through all of them in turn. It is no faster than one Mac, but larger models fit. Long prompts are read faster.
clusters-split-tensor = <strong>Within layers (tensor).</strong> Each Mac holds a part of every layer, and all work at once. They must exchange results after each part, so it pays only over <bdi>RDMA</bdi>.
clusters-split-rule = <strong>The first rule:</strong> if the model fits into one Mac, use one Mac.

clusters-build-title = Building one, step by step
clusters-build-cables = Put the same version of <bdi>macOS</bdi> on all of them, { $macos } or later. Cable each Mac directly to every other one, without a dock: two Macs need { $two } cable, three need { $three }, four need { $four }.
clusters-build-rdma = Start each Mac in macOS Recovery, open the Terminal there, type this, and restart:
clusters-build-devices = Afterwards there is a device for each port:
clusters-build-install = Put the same version of <bdi>mlx-lm</bdi> on all, and let the first Mac reach the others by <bdi>ssh</bdi> without a password:
clusters-build-config = Let MLX set up the links and write down who is cabled to whom. It asks for administrator’s rights and changes the network settings:
clusters-build-run = Start the model on all Macs at once:
clusters-build-check = Ask the same with a short and with a very long prompt, on one Mac and on the cluster. Wrong answers to long prompts have been reported, so trust a cluster only when both agree.

clusters-network-title = From a cluster to the network
clusters-network-plan = The plan: an owner offers cabled Macs as one pod, the network measures how fast it is and whether it answers right, and gives it the jobs that only a pod can hold. None of that is built.
clusters-network-today = Today each Mac joins by itself, and a job stays on one Mac.

clusters-not-title = What it is not
clusters-not-memory = <strong>Not one memory.</strong> Each Mac holds its own part. A model must be cut so that the parts fit.
clusters-not-datacentre = <strong>Not a data-centre card.</strong> It holds large models for less money. It does not compute as fast, above all for many people at once.
clusters-not-faster = <strong>Not always faster.</strong> A model that fits into one Mac often gets slower when it is split.
clusters-not-other = <strong>Not for everything.</strong> This network runs language models. It does not render and does not build software.

clusters-claims-title = Well-known claims
clusters-claims-note = We have measured none of this ourselves. The figures are the sources’ own; where we calculated from them, it says so.
clusters-claim = Claim, and who said it
clusters-shown = What published runs show
clusters-verdict = Verdict
verdict-true = Holds.
verdict-partly = Partly.
verdict-doubtful = Doubtful.
claim-latency = Delay falls from { $before } to under { $after }
claim-latency-shown = One exchange between two Macs took { $wire }. Inside a running model each costs { $low } to { $high }, calculated from published speeds.
claim-latency-verdict = True of the cable; a model waits longer.
claim-kimi = { $claimed } for { $model } on four { $chip } Macs
claim-kimi-shown = The chart behind it shows { $best }, for prompts of unknown length. Another lab got { $other } with a sister model.
claim-kimi-verdict = Nearly, once. Expect about half.
claim-speedup = { $two } as fast on two Macs, { $four } on four
claim-speedup-shown = For writing answers one chart shows { $chart_two } and { $chart_four }; another lab, on four, { $worst } to { $dense }. For reading long prompts { $read_low } to { $read_high } on four.
claim-speedup-verdict = For reading prompts, not for writing answers.
claim-session = Nearly { $claimed } as fast on four Macs
claim-session-shown = No run by others that we know of. Calculated for this model: { $low } to { $high } unquantised, { $small_low } to { $small_high } at half the size.
claim-session-verdict = Plausible for one dense model, but not a rule.
claim-link = { $claimed } by cable
claim-link-shown = Large blocks reach { $best } between two Macs; another lab saw { $other }.
claim-link-verdict = Nearly reached with large blocks. For answers, delay counts more.
claim-power = Four Macs on less than { $claimed }
claim-power-shown = The maker states up to { $maker } for one such Mac. At the wall one took { $low } to { $high } at work.
claim-power-verdict = Perhaps in that demonstration. Plan for { $all }.

clusters-questions-title = Questions
question-mixed = Can the Macs differ?
question-mixed-answer = They can. But splitting within layers gives each the same part, so the smallest Mac decides what fits and the slowest how fast it is.
question-old = What about older Thunderbolt, or Ethernet?
question-old-answer = Splitting by layers works over them. Splitting within layers mostly makes a model slower there.
question-far = Why not over the internet?
question-far-answer = A message there takes thousands of times as long as over the cable, and each token needs many. So this network gives a job to one Mac, whole.
question-buy = Should I buy one?
question-buy-answer = Not to earn here: tokens are service credits and are not paid out. Buy one if you need a model on your own desk that one Mac cannot hold.
