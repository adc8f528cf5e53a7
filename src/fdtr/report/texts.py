"""Every text of the report, by name: translate this module, and the report is translated.

Names in braces are filled in. What people wrote (labels, names of sites and covariates) and the reasons that come with
a number stay as they are.
"""

TEXTS = {
    # The page
    "page.language": "en",
    "page.title": "{study}: fdtr report",
    "page.contents": "Sections",
    "page.skip": "Skip to the report",
    "page.notice": "For use at home; not checked for disclosure: small counts are shown as they are.",
    "page.research": "Research software.",
    "page.not-clinical": "Not validated for clinical use; never for decisions at the bedside.",
    "page.step": "Step {step}",
    "page.list-end": "{first} and {last}",
    "page.yes": "yes",
    "page.no": "no",
    "page.none": "none",
    "chart.svg": "Download SVG",
    "chart.csv": "Download CSV",
    "chart.of": "{what}: {title}",
    "tip.method": "method",
    "tip.estimator": "estimated by",
    "tip.site": "site",
    "tip.value": "value",
    "tip.low": "low end",
    "tip.high": "high end",
    "tip.feature": "feature",
    "tip.step": "step",
    "tip.estimate": "effect",
    "tip.worth": "patients",
    "tip.kind": "column",
    "tip.action": "action",
    "tip.share": "share",
    "tip.setting": "setting",
    "tip.same": "the same",
    "tip.rows": "rows",
    "tip.predicted": "predicted",
    "tip.observed": "observed",
    # The study in words
    "study.heading": "The study in words",
    "study.lead": "Treatment rules learnt together. Decisions for each patient: {steps}. Patients: {patients}. "
    "Sites: {sites}.",
    "study.lead-alone": "Treatment rules of each site alone: no shared effect could be learnt together. Decisions for "
    "each patient: {steps}. Patients: {patients}. Sites: {sites}.",
    "study.aim": "Each decision chooses between {actions}. A rule is to make the sum of the rewards large, one for "
    "each of {steps} decisions; each reward is mapped from {low} to {high} onto 0 to 1, so that a value lies "
    "between 0 and {steps}.",
    "study.shared": "All sites have in common the effects of {covariates} (shared).",
    "study.own": "The effects of {covariates} are each site's own.",
    "study.own-level": "A site's own is its level for each action, and no more.",
    "study.nothing-shared": "No effect is shared: every site learns on its own.",
    "study.exchange": "Every site sends one message of sums over its patients and gets one message of totals back; "
    "no patient's row leaves it. Here all rows lay in one table, and each message was computed as it would be sent.",
    "study.short": "In short",
    "study.value": "On patients held out from fitting, FDTR is worth {ours} as the mean over sites; clinicians reach "
    "{theirs}.",
    "study.model": "On patients held out from fitting, the linear model puts FDTR at {ours} as the mean over sites, "
    "and its gain over what clinicians reach at {gain}.",
    "study.doubt": "Whether the model is right about that, these patients cannot tell: too few were treated as the "
    "rule says at all steps. Doubly robust values, which would tell, are struck through below.",
    "study.doubt-all": "FDTR's value on patients held out from fitting cannot be believed; the reasons are below. "
    "Clinicians reach {theirs}.",
    "study.no-value": "No site is large enough to value its policy on its own patients.",
    "study.known": "The data are simulated, so the truth is known: FDTR's rules are worth {value} ({low} to "
    "{high}), the clinicians' own choices {practice}.",
    "study.agreement": "The rules would have chosen what was given in {share} of decisions.",
    "study.disclosure": "Disclosure would let {passing} of {sites} sites send their sums.",
    # The data by site
    "data.heading": "The data by site",
    "data.counts": "Patients and rows, and values changed on reading",
    "data.site": "Site",
    "data.patients": "Patients",
    "data.rows": "Rows",
    "data.clipped": "Clipped to the public range",
    "data.filled": "Missing and filled",
    "data.action": "Action",
    "data.actions": "Patients by action and step",
    "data.disclosure": "Nothing was sent here. This is what the disclosure rules would say to each site's sums. "
    "Where sums are combined, rule SITES also asks for at least {sites} sites.",
    "data.rules": "Disclosure rules, by site",
    "data.result": "Result",
    "data.failing": "Rules that fail",
    "data.refused": "refused",
    "data.passes": "passes",
    "data.rule": "{rule} at step {steps}: {measured}; the study asks for {asked}.",
    # Values
    "values.heading": "Value of each method",
    "values.how-folds": "Every method was fitted again without one fold of a site's patients after the other, tuning "
    "included, with the other sites' sums as they were sent; the patients left out are the ones it is valued on.",
    "values.how-half": "Every method was fitted again to one half of the patients of every site, tuning included; the "
    "other halves are the patients it is valued on.",
    "values.methods": "Clinicians are what was done. FDTR is learnt together; LDTR and Q-learning by each site alone; "
    "MV is a majority vote.",
    "values.estimators": "Doubly robust values weigh patients by how often clinicians did as the rule would, and a "
    "model of the value fills in the rest; with few such patients they say nothing and are struck through. The "
    "linear model alone (fitted-Q evaluation) is corrected on the patients left out and needs no such patients; it "
    "holds as far as the model does.",
    "values.clustered": "Errors are clustered by the column with the role cluster: {counts}. Patients of "
    "a cluster are left out together.",
    "values.clusters": "{n} clusters at {site}",
    "values.none": "No site could be valued.",
    "values.not-valued": "{site} is not valued: {reason}",
    "values.chart": "Value of each method, mean over sites",
    "values.chart-caption": "Marks are means over sites, lines 95% intervals. Hollow with a dashed line: not to be "
    "believed.",
    "values.table": "Value of each method, mean over sites, with 95% intervals",
    "values.method": "Method",
    "values.robust": "Doubly robust",
    "values.model": "Linear model alone",
    "values.robust-raw": "Doubly robust, raw reward",
    "values.model-raw": "Linear model, raw reward",
    "values.estimator": "Estimated by",
    "values.believed": "Doubly robust value believed?",
    "values.span": "{value} ({low} to {high})",
    "values.struck": "not to be believed",
    "values.value": "Value",
    "values.by-site-chart": "Value of each method at each site",
    "values.by-site-caption": "Marks are values at one site, lines 95% intervals. Hollow with a dashed line: not to be "
    "believed.",
    "values.by-site-table": "Value at each site; struck through where it is not to be believed",
    "values.why": "Why values are struck through",
    "values.why-table": "Reasons, by site and method",
    "values.reason": "Reason",
    "values.pooling": "How much more FDTR is worth, on the same patients",
    "values.pooling-table": "FDTR less another method: plain mean over sites, fixed effect, random effects",
    "values.over": "Less",
    "values.plain": "Plain mean",
    "values.fixed": "Fixed effect",
    "values.random": "Random effects",
    "values.pooling-note": "The plain mean is about these sites. Random effects (Paule and Mandel, with Hartung and "
    "Knapp's interval) are about the sites of which these are a sample.",
    "values.known-chart": "True value of each method, by simulation",
    "values.known-table": "True value of each method, overall and by site",
    "values.known": "True value",
    "values.interval": "95% interval",
    "values.all": "All sites",
    # Shared coefficients
    "effects.heading": "Shared coefficients over time",
    "effects.none": "The study has no shared feature, so nothing is learnt together.",
    "effects.how": "Effects on the reward of one step that all sites have in common, from the total of their sums. "
    "In a feature's name, a is the action; a feature without it moves the reward whatever is done. Covariates are "
    "scaled to their public range and rewards to 0 to 1 unless the study says otherwise.",
    "effects.observed": "They are associations in the data as observed. They are causal only if nothing unmeasured "
    "moved both treatment and outcome.",
    "effects.chart": "Shared effects on the reward by step",
    "effects.chart-caption": "Across: step. Up: effect. Lines are 95% intervals of one step; the band holds for all "
    "steps of a feature together. Effects that no site identifies are not drawn.",
    "effects.unidentified": "No combination of sites identifies any shared effect, so none is drawn.",
    "effects.clear": "All judged together (Holm, 5%), these are not 0: {effects}.",
    "effects.at-steps": "{feature} (step {steps})",
    "effects.nothing-clear": "All judged together (Holm, 5%), none of them is clearly other than 0.",
    "effects.numbers": "Every effect in numbers",
    "effects.table": "Shared effects, with p-values by Holm's method over all steps and features",
    "effects.feature": "Feature",
    "effects.step": "Step",
    "effects.estimate": "Effect",
    "effects.interval": "95% interval",
    "effects.band": "Band over steps",
    "effects.p": "p (Holm)",
    "effects.raw": "In raw units",
    "effects.not-identified": "not identified",
    "effects.fdtr": "FDTR's own estimates",
    "effects.fdtr-how": "What the rules use are ridge estimates of effects on the value, averaged here over sites. "
    "They are drawn towards 0 and have no interval. Theorem 3 bounds how far they are from the truth, up to a constant "
    "it leaves open: a scale, not a promise.",
    "effects.fdtr-table": "FDTR's shared coefficients, averaged over sites",
    "effects.bound": "Theorem 3's bound, as for messages",
    "effects.by-site": "The same at each site",
    "effects.by-site-table": "FDTR's shared coefficients at each site",
    # Heterogeneity and gain
    "sharing.heading": "Heterogeneity and gain from sharing",
    "sharing.none": "The study has no shared feature, so there is nothing to compare.",
    "sharing.q": "If effects were common, the sites' own estimates would differ by chance alone. A small p says "
    "that they differ by more; I² is the share of the difference that is not chance.",
    "sharing.q-table": "Cochran's Q by step",
    "sharing.statistic": "Q",
    "sharing.df": "Degrees of freedom",
    "sharing.p": "p",
    "sharing.i-squared": "I²",
    "sharing.all-steps": "All steps",
    "sharing.gain": "To know a shared effect alone as precisely as all sites know it together, a site would need "
    "this many patients of its own (median over steps).",
    "sharing.gain-chart": "Patients that sharing is worth",
    "sharing.gain-caption": "Each mark is one site and feature. Sites that could never tell the effect alone are "
    "left out.",
    "sharing.gain-table": "Patients of its own that each site would need",
    "sharing.has": "Patients it has",
    "sharing.never": "never alone",
    "sharing.worth": "Patients",
    "sharing.identified": "A shared effect is learnt from what is left of its feature once the site's own effects "
    "are free: 100% means all of it is left, 0% that this site says nothing about it.",
    "sharing.identified-table": "Share of each shared feature that is left, averaged over steps",
    "sharing.silent": "{feature} carries no information at {sites}: {reason}.",
    # What the policy does
    "policy.heading": "What the policy does",
    "policy.how": "For each step the left column shows what was given and the right column what the rule would "
    "choose for the same patients. The first action is at the bottom and lightest.",
    "policy.chart": "Actions given and recommended",
    "policy.share": "Share of patients",
    "policy.given": "given",
    "policy.recommended": "recommended",
    "policy.table": "Share of patients by step, given → recommended",
    "policy.agreement-table": "Agreement of FDTR with clinicians, with the other methods, and with clinicians' habits",
    "policy.clinicians": "Clinicians",
    "policy.rare": "Rare actions",
    "policy.rare-note": "Rare actions: the largest share, over steps, of recommended actions that clinicians take "
    "with a chance below 5%.",
    "policy.settings-chart": "Decisions that stay the same with other settings",
    "policy.settings-caption": "Left: other c, which takes more off where data are few. Right: other w, the weight "
    "on the other sites' sums. Each site's own settings are at 100%.",
    "policy.setting": "Setting",
    "policy.same": "Decisions that stay",
    "policy.settings-table": "Decisions that stay the same with other settings",
    "policy.example": "One made-up patient",
    "policy.example-state": "At step {step}: {state}.",
    "policy.example-how": "A rule takes the action with the largest bound. The bound is the estimated value of the "
    "steps from here on less a penalty, which is large where few similar patients were treated in this way.",
    "policy.example-table": "Each site's choice, and what it rests on",
    "policy.chosen": "{label} (chosen)",
    "policy.estimate": "Estimate",
    "policy.penalty": "Penalty",
    "policy.bound": "Bound",
    "policy.shared-part": "Shared part",
    "policy.own-part": "Own part",
    # Trust
    "trust.heading": "How far to trust this",
    "trust.none": "No site could be valued, so there is nothing to check.",
    "trust.ess": "A rule can be valued only from patients who were treated as it says. The effective sample size is "
    "how many equal patients their weights are worth. A value is struck through where it falls below 10 or 1% of "
    "the patients.",
    "trust.ess-chart": "Effective sample size of FDTR by step",
    "trust.ess-caption": "Below the dashed line no value is believed.",
    "trust.ess-axis": "Effective sample size",
    "trust.overlap-chart": "Recommended actions that clinicians rarely take",
    "trust.overlap-caption": "Share of patients by step to whom FDTR recommends what clinicians do with a chance "
    "below 5%.",
    "trust.overlap-axis": "Share of recommended actions",
    "trust.weights-table": "Weights and overlap of FDTR, the worst step of each site",
    "trust.smallest-ess": "Smallest effective sample size",
    "trust.zero": "Patients without weight",
    "trust.largest": "Largest single weight",
    "trust.rare": "Rare recommendations",
    "trust.mean": "Smallest mean weight (1 if nobody is lost)",
    "trust.low": "1% quantile of their chances",
    "trust.calibration-chart": "Calibration of the propensity model",
    "trust.calibration-caption": "Patients in ten groups by the predicted chance of an action: the share who got "
    "it. On the line, predictions are right.",
    "trust.predicted": "Predicted chance",
    "trust.observed": "Observed share",
    "trust.calibration-table": "Mean distance between predicted and observed, by action",
    "trust.confounding": "If clinicians acted on something the table does not hold, values are wrong. Γ bounds the "
    "odds ratio by which such a thing may move a choice. The last column is the Γ at which FDTR's difference from "
    "clinicians could change its sign; near 1 a little hidden confounding is enough. Bounds are of step-weighted "
    "importance sampling, sampling error aside; struck through where its weights are worth too little for that.",
    "trust.confounding-table": "Bounds of FDTR's value under hidden confounding",
    "trust.odds": "Γ = {odds}",
    "trust.tipping": "Γ that could turn the difference",
    "trust.beyond": "above 100",
    "trust.no-tipping": "cannot be told",
    "trust.markov": "The methods take the state for all that matters of the past. If the step before helps to "
    "predict what comes next, it is not. Shown is what it adds to held-out R², with its standard error; * marks "
    "more than two of them.",
    "trust.markov-table": "What the step before adds",
    "trust.reward": "Reward",
    "trust.value": "Later value",
    "trust.transitions": "The model says that the shared features do not help to predict what comes next, once the "
    "site's own are known. A small p says that they do; then what was learnt together may mislead, and sharing "
    'rewards alone (share = "reward") is worth a try. * marks p below 0.05; of many tests, one in twenty is below '
    "it by chance.",
    "trust.transitions-table": "p-values of the F test of transitions",
    "trust.ties": "Where two actions are nearly as good, which one a rule takes is chance, and intervals for the "
    "best possible value would be too narrow. They are not shown.",
    "trust.ties-table": "Share of patients with nearly tied actions, by step",
    "trust.warnings": "Warnings",
    "trust.warning": "{site}: {sentence}",
    # Method
    "method.heading": "Method, settings, fingerprint, versions",
    "method.how": "FDTR is pessimistic value iteration: from the last step to the first, the value of each action "
    "is estimated by ridge regression on this site's patients and the other sites' sums, less a penalty where data "
    "are few. Values on held-out patients use propensities by multinomial logistic regression and Q by linear "
    "regression, both cross-fitted by patient, with influence-function intervals and Student's t.",
    "method.settings-table": "Settings of the study",
    "method.setting": "Setting",
    "method.symbol": "Symbol",
    "method.value": "Value",
    "method.meaning": "Meaning",
    "method.pessimism": "Pessimism",
    "method.pessimism-meaning": "how much is taken off where data are few; 0: nothing",
    "method.ridge": "Ridge",
    "method.ridge-meaning": "how strongly coefficients are drawn to 0",
    "method.sharing": "Sharing",
    "method.sharing-meaning": "weight on the other sites' sums: 1 in full, 0 alone",
    "method.share": "What is shared",
    "method.share-meaning": "values as in the paper, or rewards alone",
    "method.failure": "Failure probability",
    "method.failure-meaning": "of the confidence bound",
    "method.misspecification": "Misspecification",
    "method.misspecification-meaning": "largest error of the linear model",
    "method.reward": "Reward",
    "method.reward-meaning": "the range that is mapped onto 0 to 1",
    "method.range": "{low} to {high}",
    "method.end": "End: {end}",
    "method.end-meaning": "worth of each step that is missing",
    "method.chosen-table": "Chosen by each site",
    "method.nothing": "nothing",
    "method.fingerprint": "Study fingerprint: ",
    "method.versions": "Versions: ",
    # Model card
    "card.heading": "Model card",
    "card.how": "In the terms of TRIPOD+AI (Collins et al., BMJ 2024), as far as they apply to a treatment rule.",
    "card.table": "What a reader of a prediction or decision model asks",
    "card.item": "Item",
    "card.answer": "Answer",
    "card.title": "Title",
    "card.title-answer": "Development of treatment rules (decisions: {steps}) in the study {study} (sites: "
    "{sites}), with internal validation by cross-fitting.",
    "card.use": "Intended use",
    "card.use-answer": "Research: to compare ways of treating. Not for use at the bedside, where it has not been "
    "tried.",
    "card.source": "Source of data",
    "card.simulated": "Simulated, with a known truth: no patient is real.",
    "card.source-answer": "Observational records of {patients} patients, {rows} rows, as the sites' tables hold "
    "them. Who was included is for the study's protocol to say; the software does not know.",
    "card.outcome": "Outcome",
    "card.outcome-answer": "The sum of the rewards, one for each of {steps} decisions, each from {low} to {high} in "
    "raw units.",
    "card.predictors": "Predictors",
    "card.missing": "Missing data",
    "card.missing-answer": "{filled} values were filled as the study asks, {clipped} clipped to public ranges.",
    "card.sample": "Sample size",
    "card.sample-answer": "From {least} to {most} patients a site; chosen by nobody here.",
    "card.analysis": "Analysis",
    "card.analysis-answer": "Linear, pessimistic, federated; see the section on method.",
    "card.performance": "Performance",
    "card.performance-answer": "See the values above, with intervals; those struck through are no evidence.",
    "card.fairness": "Fairness",
    "card.fairness-answer": "Not examined: no group of patients was looked at by itself.",
    "card.validation": "External validation",
    "card.validation-answer": "None. Sites that took part are no external sites.",
    "card.limits": "Limitations",
    "card.limits-answer": "Unmeasured confounding, linear models, few patients treated as a rule says, no "
    "prospective test.",
    "card.open": "Open science",
    "card.open-answer": "Software fdtr {version}, Apache-2.0; study fingerprint {fingerprint}.",
    # Citation
    "cite.heading": "How to cite",
    "cite.method": "The method:",
    "cite.software": "The software:",
    "cite.software-text": "The fdtr developers. fdtr {version}: federated dynamic treatment regimes.",
    "cite.paper": "Zhou D, Zhang Y, Sonabend-W A, Wang Z, Lu J, Cai T. Federated Offline Reinforcement Learning. "
    "Journal of the American Statistical Association 119(548), 3152–3163, 2024. doi:10.1080/01621459.2024.2310287",
}


def say(name: str, **values: object) -> str:
    """A text with its gaps filled.

    >>> say("page.step", step=3)
    'Step 3'
    """
    return TEXTS[name].format(**values) if values else TEXTS[name]
