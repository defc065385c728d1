package reconcile

import (
	"errors"
	"fmt"
	"strings"
)

// maxErrors is of how many errors that are joined the text is kept and logged. A Service can have thousands,
// one for each port of each of its addresses.
const maxErrors = 16

// brief returns err, or an error with its first lines where it joins many. It wraps none.
func brief(err error) error {
	lines := strings.SplitN(err.Error(), "\n", maxErrors+1)
	if len(lines) <= maxErrors {
		return err
	}
	more := 1 + strings.Count(lines[maxErrors], "\n")
	lines[maxErrors] = fmt.Sprintf("and %d more", more)
	return errors.New(strings.Join(lines, "\n"))
}
