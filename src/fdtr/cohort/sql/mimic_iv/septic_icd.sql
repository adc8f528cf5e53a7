-- One row per ICU stay of an admission that was coded as sepsis; its onset is not known.
--
-- ICD-10: A40, A41 (septicaemia), R65.2 (severe sepsis). ICD-9: 038 (septicaemia), 995.91, 995.92, 785.52. Codes are given
-- at discharge, so a stay may be coded for a sepsis that came after it: use `sepsis3` where the database has it.
SELECT i.stay_id, CAST(NULL AS TIMESTAMP) AS onset
FROM source_icustays AS i
WHERE
    i.hadm_id IN (
        SELECT d.hadm_id
        FROM source_diagnoses_icd AS d
        WHERE
            (
                d.icd_version = 10
                AND (d.icd_code LIKE 'A40%' OR d.icd_code LIKE 'A41%' OR d.icd_code LIKE 'R652%')
            )
            OR (
                d.icd_version = 9
                AND (d.icd_code LIKE '038%' OR d.icd_code LIKE '99591%' OR d.icd_code LIKE '99592%' OR d.icd_code LIKE '78552%')
            )
    )
