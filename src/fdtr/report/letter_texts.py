"""What each number of a message means, and what it tells, for people who decide whether it may leave."""

from typing import NamedTuple


class Meaning(NamedTuple):
    """An array of a message: its symbol, what it is, and what it tells or cannot tell."""

    symbol: str
    title: str
    what: str
    tells: str


MEANINGS = {
    "n": Meaning(
        "n",
        "Patients",
        "How many patients had a decision at each step. These are the only numbers here that count people.",
        "It does not tell who they are, nor how they were treated.",
    ),
    "schur": Meaning(
        "S",
        "How the shared covariates vary",
        "Each number is a sum over all patients of the product of two features, after the part that the site's own "
        "covariates explain was taken out. A feature is a covariate, scaled, times a power of the treatment's code.",
        "It does not tell what any one patient's covariates or treatment were: a sum over n patients fits countless "
        "different patients, as long as n is far larger than the number of features, which the rules ask for.",
    ),
    "schur_moment": Meaning(
        "s",
        "How the shared covariates go with what follows",
        "The same sums, with the outcome from this step on in place of the second feature: this step's reward plus "
        "what the site's own first rule expects of the later steps.",
        "It does not tell any one patient's outcome.",
    ),
    "schur_reward": Meaning(
        "s_r",
        "How the shared covariates go with the reward",
        "The same sums, with this step's reward, mapped onto [0, 1], in place of the second feature.",
        "It does not tell any one patient's reward.",
    ),
    "information": Meaning(
        "W",
        "S, weighed by the site's noise",
        "S divided by σ̂², the variance of the reward around the site's own fit. Sites with less noise weigh more.",
        "Beside S it tells one number for each step, σ̂², and nothing else.",
    ),
    "information_moment": Meaning(
        "v",
        "s_r, weighed by the site's noise",
        "s_r divided by the same σ̂².",
        "It tells nothing beside s_r and σ̂².",
    ),
    "information_square": Meaning(
        "u",
        "How much of the reward the shared covariates explain",
        "One sum of squares for each step, s_rᵀS⁺s_r / σ̂². It serves the test of whether sites agree.",
        "It follows from the sums above and tells nothing else.",
    ),
    "rank": Meaning(
        "g",
        "Directions that were seen",
        "In how many independent directions the shared covariates vary at this site.",
        "It follows from S and tells nothing else.",
    ),
}

GRAM_MEANINGS = {
    "n": Meaning(
        "n",
        "Patients",
        "How many patients had a decision at each step.",
        "It does not tell who they are.",
    ),
    "gram": Meaning(
        "ΦᵀΦ",
        "How all covariates vary together",
        "Each number is a sum over all patients of the product of two features, the site's own among them. A feature "
        "is a covariate, scaled, times a power of the treatment's code. Nothing was taken out.",
        "It can tell how many patients got each treatment; the means and the spread of every covariate, of any two "
        "together, and all this within each treatment; for covariates that are yes or no, how many patients have one, "
        "and how many have two of them. Where a treatment has as few patients as there are covariates, it tells "
        "their rows; the rules ask for ten more.",
    ),
    "moment": Meaning(
        "ΦᵀY",
        "How all covariates go with what follows",
        "The same sums, with the outcome from this step on in place of the second feature: this step's reward plus "
        "what the site's own first rule expects of the later steps.",
        "It can tell the mean outcome within each treatment, and for those with and without each covariate.",
    ),
    "reward_moment": Meaning(
        "Φᵀr",
        "How all covariates go with the reward",
        "The same sums, with this step's reward, mapped onto [0, 1], in place of the second feature.",
        "It can tell the mean reward within each treatment, and for those with and without each covariate.",
    ),
    "reward_square": Meaning(
        "rᵀr",
        "The size of the rewards",
        "One sum for each step: of every patient's reward, mapped onto [0, 1], times itself.",
        "It can tell, with the sums above, how far rewards spread, and of rewards that are 0 or 1 how many are 1.",
    ),
}

AUDIT = (
    "This is an audit message: it holds the sums of all features, from which the usual message can be computed again.",
    "It tells more than the usual one, and whoever holds it sees this one site.",
    "No patient's row, identifier, date or name is in it. Where few share a trait, it could give them away.",
    "Stricter rules kept such sums at home; they prove nothing about what a reader knows already.",
    "Two files of one site whose patients differ by one give away that patient's row and outcome, exactly.",
    "A site's own records refuse a second file that differs by a few.",
)
ALONE = (
    "No patient's row, identifier, date or name is in this file, and no number in it belongs to one patient.",
    "Two files of one site whose patients differ by one, or by a few, tell those apart when one is subtracted.",
    "A site therefore sends one message for a study, and its own records refuse a second that differs so little.",
)
TOGETHER = (
    "Each number is the sum, over the sites named below, of what their messages hold.",
    "No patient's row, identifier, date or name is in it, and no number in it belongs to one patient.",
    "A site that subtracts its own message learns the sum of the others; of two sites, the other one's message.",
    "The rules therefore ask for three or more.",
)
VALUES = (
    "For each way of choosing treatments: what it is worth to this site's patients, and how uncertain that is.",
    "Values are sums of rewards, each mapped onto [0, 1].",
    "These are means over all patients. They do not tell any one patient's outcome or treatment.",
)
