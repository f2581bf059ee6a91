package config

import "github.com/nereid-serving/nereid/libs/spelling"

// nearest returns the known name that differs least from name, if it is near
// enough to be what was meant.
func nearest(name string, known map[string]bool) string {
	best, least := "", len(name)/3+2
	for candidate := range known {
		d := spelling.Distance(name, candidate)
		if d < least || (d == least && best != "" && candidate < best) {
			best, least = candidate, d
		}
	}
	return best
}
