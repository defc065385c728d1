package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// origin is where values come from, so that an error can name the place.
type origin struct {
	places map[string]place  // by kind
	flags  map[string]string // names without dashes, by field path, which starts with the kind
	// files are the sums of the files' content, by name.
	files map[string][sha256.Size]byte
	// unknown are the fields of kube-proxy's part that this version does not know.
	unknown []*yamldoc.Fault
}

// place is a document of a file.
type place struct {
	file     string
	document *yamldoc.Document
}

// Changed returns which of the files are not as they were read, or gone, sorted. One that cannot be read
// now is not known to be.
func (c *Config) Changed() []string {
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(c.origin.files)) {
		raw, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && sha256.Sum256(raw) != c.origin.files[name] {
			changed = append(changed, name)
		}
	}
	return changed
}

// explain joins errors into one, each at the place where the value was given.
func (o *origin) explain(list field.ErrorList) error {
	errs := make([]error, 0, len(list))
	for _, err := range list {
		errs = append(errs, o.at(err))
	}
	return errors.Join(errs...)
}

// at returns the error with its place: the flag, the field of a document, or the field
// alone when it has its default.
func (o *origin) at(err *field.Error) error {
	for above, flag := range o.flags {
		if rest, ok := strings.CutPrefix(err.Field, above); ok && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return fmt.Errorf("--%s%s: %s", flag, rest, err.ErrorBody())
		}
	}
	kind, path, _ := strings.Cut(err.Field, ".")
	if p, ok := o.places[kind]; ok {
		fault := p.document.FaultAt(path, err.ErrorBody())
		fault.File = p.file
		return fault
	}
	return errors.New(err.Error())
}
