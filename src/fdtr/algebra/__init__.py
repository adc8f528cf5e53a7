"""The method's linear algebra: arrays in, arrays out, with numpy and scipy alone.

normal_equations    ΦᵀΦ and Φᵀy by action, and their solutions
schur               the Schur complements S and s that a site sends, and the sums in (11)
pessimism           the penalty Γ of (12) with α of (13), and the lower bound φᵀθ − Γ
noised              sums with noise, for differential privacy
threads             the same sums on any number of threads
"""
