package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// stateVersion changes when an older agent could not read the state file.
const stateVersion = 1

// state is the content of the state file, which outlives a restart.
type state struct {
	Version int `json:"version"`
	// Assigned is by "namespace/name" of the Service.
	Assigned map[string]assignment `json:"assigned,omitempty"`
	// Files holds the last good content of each file, by its name.
	Files map[string][]byte `json:"files,omitempty"`
}

func newState(assigned map[model.Name]assignment, files map[string]*manifest) *state {
	st := &state{Version: stateVersion, Assigned: map[string]assignment{}, Files: map[string][]byte{}}
	for name, a := range assigned {
		if len(a.ClusterIPs)+len(a.NodePorts) > 0 {
			st.Assigned[name.String()] = a
		}
	}
	for name, f := range files {
		if f.good != nil {
			st.Files[name] = f.good.raw
		}
	}
	return st
}

// assigned returns the assignments by name.
func (st *state) assigned() map[model.Name]assignment {
	all := map[model.Name]assignment{}
	for key, a := range st.Assigned {
		namespace, name, _ := strings.Cut(key, "/")
		all[model.Name{Namespace: namespace, Name: name}] = a
	}
	return all
}

// readState returns the state kept at path and the file's bytes; an empty state
// when there is no file yet.
func readState(path string) (*state, []byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &state{Version: stateVersion}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read state: %w", err)
	}
	st, err := parseState(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read state %s: %w, or remove the file to assign addresses afresh", path, err)
	}
	return st, data, nil
}

// parseState reads the content of a state file. The error says what is wrong and what
// mends it, but for removing the file.
func parseState(data []byte) (*state, error) {
	st := &state{}
	if err := json.Unmarshal(data, st); err != nil {
		return nil, fmt.Errorf("%w: restore it from a copy", err)
	}
	if st.Version != stateVersion {
		return nil, fmt.Errorf("it has version %d, this agent knows %d: run the agent that wrote it", st.Version, stateVersion)
	}
	for name, a := range st.Assigned {
		for _, ip := range a.ClusterIPs {
			if !ip.IsValid() || ip.Zone() != "" || ip.Is4In6() {
				return nil, fmt.Errorf("%q is no cluster IP of %s: restore it from a copy", ip, name)
			}
		}
	}
	return st, nil
}

// writeState replaces the file at path with data. A crash leaves the old file or
// the new one.
func writeState(path string, data []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write state %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
