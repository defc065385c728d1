package model

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AnnotationOutlierDetection is the annotation that a Service names its [Service.Outliers] by.
const AnnotationOutlierDetection = "service.beeline.io/outlier-detection"

// Outliers is how endpoints are told that do not answer, and how long they get no new connections.
// The zero value is no outlier detection.
type Outliers struct {
	// Failures are the connections in a row that have to fail: TCP's that are refused, and each time
	// that a SYN is sent again.
	Failures uint8
	// Time is how long an endpoint is ejected the first time. It doubles with each time that it has
	// not served well in between, up to [MaxEjection].
	Time time.Duration
	// Percent is how many of the endpoints may be ejected at a time; one may always be, the last one
	// never.
	Percent uint8
}

// DefaultOutliers is what "on" means.
var DefaultOutliers = Outliers{Failures: 5, Time: 30 * time.Second, Percent: 50}

// The bounds of the time of an ejection: each is a change of the Service, and so is its end.
const (
	MinEjection = 5 * time.Second
	MaxEjection = time.Hour
)

// Used reports whether there is outlier detection.
func (o Outliers) Used() bool { return o.Failures > 0 }

// String returns the text that [ParseOutliers] reads.
func (o Outliers) String() string {
	if !o.Used() {
		return "off"
	}
	return fmt.Sprintf("failures=%d,time=%s,percent=%d", o.Failures, o.Time, o.Percent)
}

// ParseOutliers returns what a text asks for: "off", "on", or a list such as
// "failures=3,time=30s,percent=50", where [DefaultOutliers] has what is left out.
func ParseOutliers(text string) (Outliers, error) {
	switch text {
	case "off":
		return Outliers{}, nil
	case "on":
		return DefaultOutliers, nil
	}
	o, seen := DefaultOutliers, make(map[string]bool)
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if seen[name] {
			return Outliers{}, fmt.Errorf("%s is there twice", Quote(name))
		}
		seen[name] = true
		if err := o.set(name, value); err != nil {
			return Outliers{}, err
		}
	}
	return o, nil
}

// set sets a part to a value.
func (o *Outliers) set(name, value string) error {
	switch name {
	case "failures":
		n, err := strconv.ParseUint(value, 10, 8)
		if err != nil || n == 0 {
			return fmt.Errorf("failures: %s is no number from 1 to 255", Quote(value))
		}
		o.Failures = uint8(n)
	case "time":
		d, err := time.ParseDuration(value)
		if err != nil || d < MinEjection || d > MaxEjection {
			return fmt.Errorf("time: %s is no duration from %s to %s, such as 30s", Quote(value), MinEjection, MaxEjection)
		}
		o.Time = d
	case "percent":
		n, err := strconv.ParseUint(value, 10, 8)
		if err != nil || n == 0 || n > 100 {
			return fmt.Errorf("percent: %s is no number from 1 to 100", Quote(value))
		}
		o.Percent = uint8(n)
	default:
		return fmt.Errorf("%s is neither on nor off, nor a list such as failures=5,time=30s,percent=50", Quote(name))
	}
	return nil
}

// Ejection returns how long an endpoint is ejected that has been so many times before.
func (o Outliers) Ejection(times uint32) time.Duration {
	return min(o.Time<<min(times, 12), MaxEjection)
}

// MayEject reports whether one more of so many endpoints may be ejected beside others.
func (o Outliers) MayEject(endpoints, ejected int) bool {
	return ejected+1 < endpoints && (ejected == 0 || (ejected+1)*100 <= int(o.Percent)*endpoints)
}
