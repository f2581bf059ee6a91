package config

// nearest returns the known name that differs least from name, if it is near
// enough to be what was meant.
func nearest(name string, known map[string]bool) string {
	best, least := "", len(name)/3+2
	for candidate := range known {
		d := distance(name, candidate)
		if d < least || (d == least && best != "" && candidate < best) {
			best, least = candidate, d
		}
	}
	return best
}

// distance is the Levenshtein distance: how many bytes to insert, delete or
// replace to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j+1]+1, row[j]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
