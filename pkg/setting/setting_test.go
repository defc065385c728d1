package setting_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/beeline-lb/beeline/pkg/setting"
)

// full names its field at the end.
type full struct{}

func (full) Error() string { return "map is full: raise tables.maxFlows" }
func (full) Field() string { return "tables.maxFlows" }

// TestText: flags take the place of the fields that are known, in errors wrapped and joined,
// and of nothing else in the text.
func TestText(t *testing.T) {
	flag := func(field string) string {
		return map[string]string{"bpffs": "--bpffs", "tables.maxFlows": "--max-flows"}[field]
	}
	missing := setting.Errorf("bpffs", "/mnt/bpffs: %w", fs.ErrNotExist)
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain bpffs: tables.maxFlows"), "plain bpffs: tables.maxFlows"},
		{missing, "--bpffs: /mnt/bpffs: file does not exist"},
		{fmt.Errorf("open: %w", full{}), "open: map is full: raise --max-flows"},
		{fmt.Errorf("%w: %w", missing, fs.ErrPermission), "--bpffs: /mnt/bpffs: file does not exist: permission denied"},
		{errors.Join(missing, missing, full{}), "--bpffs: /mnt/bpffs: file does not exist\n" +
			"--bpffs: /mnt/bpffs: file does not exist\nmap is full: raise --max-flows"},
		{setting.Errorf("devices", "too many"), "devices: too many"},
	} {
		if got := setting.Text(c.err, flag); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("%v wraps nothing", missing)
	}
}
