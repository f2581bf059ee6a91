// Package resources computes the amounts of the rate limiter's resources from
// their configuration.
package resources

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// EachDevice is the device number that means every device separately.
const EachDevice = -1

// Count is the amount of a resource.
type Count struct {
	// Name has no upper-case letters.
	Name string
	// Device is the number of its device, or EachDevice. It is ignored for a global resource.
	Device int
	Count  uint32
}

// String gives the form that [Parse] reads.
func (c Count) String() string {
	if c.Device == EachDevice {
		return fmt.Sprintf("%s:%d", c.Name, c.Count)
	}
	return fmt.Sprintf("%s:%d:%d", c.Name, c.Count, c.Device)
}

// Counts contains each resource and device once.
type Counts []Count

// Parse reads NAME:COUNT, which is for each device, and NAME:COUNT:DEVICE. As in Triton, names
// are case-insensitive, and the smaller of duplicate counts applies. Errors have the reason
// config_invalid and show the format.
func Parse(texts []string) (Counts, error) {
	var all Counts
	for _, text := range texts {
		c, ok := parse(text)
		if !ok {
			return nil, errs.New(errs.ConfigInvalid,
				"--rate-limit-resource=%s: want NAME:COUNT or NAME:COUNT:DEVICE, such as R1:4, or R1:4:0 for device 0 alone", text)
		}
		all = all.with(c)
	}
	return all, nil
}

func parse(text string) (c Count, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return c, false
	}
	count, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return c, false
	}
	c = Count{Name: strings.ToLower(parts[0]), Device: EachDevice, Count: uint32(count)}
	if len(parts) == 3 {
		device, err := strconv.ParseUint(parts[2], 10, 31)
		if err != nil {
			return c, false
		}
		c.Device = int(device)
	}
	return c, true
}

func (all Counts) with(c Count) Counts {
	for i := range all {
		if all[i].Name == c.Name && all[i].Device == c.Device {
			all[i].Count = min(all[i].Count, c.Count)
			return all
		}
	}
	return append(all, c)
}

// Texts gives the counts in the form that [Parse] reads.
func (all Counts) Texts() []string {
	var texts []string
	for _, c := range all {
		texts = append(texts, c.String())
	}
	return texts
}

// OfDevice returns the amount of a device's resource: the larger of its own count and that for
// each device. Without either it is not configured.
func (all Counts) OfDevice(name string, device int) (count uint32, configured bool) {
	return all.most(name, func(d int) bool { return d == device || d == EachDevice })
}

// OfPool returns the amount of a global resource: the largest count configured for any device.
func (all Counts) OfPool(name string) (count uint32, configured bool) {
	return all.most(name, func(int) bool { return true })
}

func (all Counts) most(name string, of func(device int) bool) (count uint32, configured bool) {
	for _, c := range all {
		if c.Name == name && of(c.Device) {
			count, configured = max(count, c.Count), true
		}
	}
	return count, configured
}
