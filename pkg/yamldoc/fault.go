package yamldoc

import (
	"fmt"
	"strings"
)

// Fault is an error at one place of a file.
type Fault struct {
	File     string // name as people know it
	Document int    // counted from 1; 0 is the file as a whole
	Line     int    // counted from 1 in the file; 0 is unknown
	Path     string // field path such as spec.ports[1].port; "" is the document
	Reason   string
}

// Error returns all that is known, from the file to the reason, with colons
// between.
func (f *Fault) Error() string {
	parts := make([]string, 0, 5)
	if f.File != "" {
		parts = append(parts, f.File)
	}
	if f.Document > 0 {
		parts = append(parts, fmt.Sprintf("document %d", f.Document))
	}
	if f.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", f.Line))
	}
	if f.Path != "" {
		parts = append(parts, f.Path)
	}
	return strings.Join(append(parts, f.Reason), ": ")
}

// MaxFaults is how many faults of one file are reported.
const MaxFaults = 20

// InFile returns the first of faults with their file filled in, and how many
// there are besides.
func InFile(name string, faults []*Fault) []error {
	var errs []error
	for _, f := range faults[:min(len(faults), MaxFaults)] {
		named := *f
		named.File = name
		errs = append(errs, &named)
	}
	if more := len(faults) - len(errs); more > 0 {
		errs = append(errs, &Fault{File: name, Reason: fmt.Sprintf("and %d more faults", more)})
	}
	return errs
}
