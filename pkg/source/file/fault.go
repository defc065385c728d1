package file

import (
	"fmt"
	"strings"
)

// Fault is what is wrong at one place of a manifest.
type Fault struct {
	File     string // name inside the folder
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

// inFile returns faults with their file filled in.
func inFile(name string, faults []*Fault) []*Fault {
	named := make([]*Fault, len(faults))
	for i, f := range faults {
		c := *f
		c.File = name
		named[i] = &c
	}
	return named
}
