package config

import "github.com/nereid-serving/nereid/libs/diagnostics"

// nearest returns the known name that differs least from name, if it differs in
// no more than so many letters.
func nearest(name string, known map[string]bool, most int) string {
	best, least := "", most+1
	for candidate := range known {
		d := diagnostics.Distance(name, candidate)
		if d < least || (d == least && best != "" && candidate < best) {
			best, least = candidate, d
		}
	}
	return best
}
