package modelconfig

import (
	"slices"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// SelectVersions returns the versions, ascending, that the policy keeps of
// those that exist. Versions that a specific policy names and that do not
// exist are missing: they are no error as long as another version is left.
// No policy keeps the latest.
func SelectVersions(policy *inference.ModelVersionPolicy, available []int64) (selected, missing []int64) {
	sorted := slices.Sorted(slices.Values(available))
	sorted = slices.Compact(sorted)
	switch p := policy.GetPolicyChoice().(type) {
	case *inference.ModelVersionPolicy_All_:
		return sorted, nil
	case *inference.ModelVersionPolicy_Specific_:
		return specificVersions(p.Specific.GetVersions(), sorted)
	case *inference.ModelVersionPolicy_Latest_:
		return latest(sorted, p.Latest.GetNumVersions()), nil
	}
	return latest(sorted, 1), nil
}

func latest(sorted []int64, n uint32) []int64 {
	return sorted[max(0, len(sorted)-int(n)):]
}

func specificVersions(wanted, sorted []int64) (selected, missing []int64) {
	for _, v := range slices.Compact(slices.Sorted(slices.Values(wanted))) {
		if _, ok := slices.BinarySearch(sorted, v); ok {
			selected = append(selected, v)
		} else {
			missing = append(missing, v)
		}
	}
	return selected, missing
}
