package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// stateVersion changes when an older agent could not read the state file.
const stateVersion = 1

// state is what outlives a restart: what was assigned, and each file's last good content. The
// state file is a sequence of records in JSON, each of which changes what those before it
// say. So a save writes what is new, and all of it only once that has come to be the smaller
// part. Contents stay on disk.
type state struct {
	path string
	file *os.File // nil is that there is none yet
	size int64    // up to where file has whole records
	base int64    // size when all was written last
	// records are those of file.
	records int

	assigned map[model.Name]assignment
	files    map[string]kept
}

// kept is the content of a file: its place in the state file, as JSON.
type kept struct {
	digest
	at, length int64
}

// openState returns the state kept at path; an empty one when there is no file yet.
func openState(path string) (*state, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(path), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	st, err := parseState(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read state %s: %w, or remove the file to assign addresses afresh", path, err)
	}
	st.path = path
	return st, nil
}

func newState(path string) *state {
	return &state{path: path, assigned: map[model.Name]assignment{}, files: map[string]kept{}}
}

// parseState reads a state file, which it keeps open unless it fails. The error says what is
// wrong and what mends it, but for removing the file. A last record that is cut short is left
// out: nobody was told of what it says.
func parseState(f *os.File) (*state, error) {
	st := newState("")
	st.file = f
	r := &reader{dec: json.NewDecoder(io.NewSectionReader(f, 0, math.MaxInt64))}
	for st.records == 0 || r.dec.More() {
		rec, err := r.record()
		if err != nil && st.records > 0 && isSyntax(err) && st.isLast(r.dec.InputOffset()) {
			break
		}
		if err != nil {
			return nil, err
		}
		st.apply(rec)
		st.records++
		st.size = r.dec.InputOffset()
	}
	st.base = st.size
	return st, nil
}

// apply makes a record part of what the state says.
func (st *state) apply(rec *record) {
	for name, a := range rec.assigned {
		if a == nil {
			delete(st.assigned, name)
		} else {
			st.assigned[name] = *a
		}
	}
	for name, k := range rec.files {
		if k == nil {
			delete(st.files, name)
		} else {
			st.files[name] = *k
		}
	}
}

// isLast reports whether the file has no whole line at or behind an offset, but for one.
func (st *state) isLast(at int64) bool {
	rest := io.NewSectionReader(st.file, at, math.MaxInt64-at)
	buf := make([]byte, 64<<10)
	for ended := false; ; {
		n, err := rest.Read(buf)
		for _, c := range buf[:n] {
			if ended {
				return false
			}
			ended = c == '\n'
		}
		if err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// content returns what the state file has of a file.
func (st *state) content(name string) ([]byte, error) {
	k, ok := st.files[name]
	if !ok {
		return nil, fmt.Errorf("the state has no %s", name)
	}
	text := make([]byte, k.length)
	if _, err := st.file.ReadAt(text, k.at); err != nil {
		return nil, fmt.Errorf("read %s in state %s: %w", name, st.path, err)
	}
	var raw []byte
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("read %s in state %s: %w", name, st.path, err)
	}
	return raw, nil
}

// save makes the state file say what was assigned and what content each file has. Of a file
// whose content cannot be read any more it goes on saying what it did; read returns nil for it.
func (st *state) save(assigned map[model.Name]assignment, files map[string]*content, read func(name string, c *content) []byte) error {
	put, names := st.changes(assigned, files)
	if len(put)+len(names) == 0 {
		return nil
	}
	get := func(name string) *value { return st.value(name, files[name], read) }
	var err error
	if st.inPlace() && st.size < 2*st.base+minRewrite {
		err = st.add(put, names, get)
	} else {
		err = st.rewrite(assigned, slices.Sorted(maps.Keys(files)), get)
	}
	if err != nil {
		return fmt.Errorf("write state %s: %w", st.path, err)
	}
	return nil
}

// compact leaves a single record in the file, which agents read that know of no others.
func (st *state) compact() error {
	if st.records < 2 || !st.inPlace() {
		return nil
	}
	return st.rewrite(st.assigned, slices.Sorted(maps.Keys(st.files)), func(name string) *value { return st.copyOf(name) })
}

// minRewrite is what a state file may grow by before it is written anew, in bytes.
const minRewrite = 1 << 20

// changes returns what the state file does not say yet.
func (st *state) changes(assigned map[model.Name]assignment, files map[string]*content) (put map[model.Name]*assignment, names []string) {
	put = map[model.Name]*assignment{}
	for name, a := range assigned {
		if !a.equal(st.assigned[name]) {
			put[name] = &a
		}
	}
	for name := range st.assigned {
		if a := assigned[name]; a.empty() {
			put[name] = nil
		}
	}
	for name, c := range files {
		if st.files[name].digest != c.digest {
			names = append(names, name)
		}
	}
	for name := range st.files {
		if files[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return put, names
}

// inPlace reports whether the file that was opened is still at its path.
func (st *state) inPlace() bool {
	if st.file == nil {
		return false
	}
	opened, err1 := st.file.Stat()
	now, err2 := os.Stat(st.path)
	return err1 == nil && err2 == nil && os.SameFile(opened, now)
}

// add appends a record. One that fails is not part of the file, whatever is left of it.
func (st *state) add(put map[model.Name]*assignment, files []string, get func(name string) *value) error {
	if err := st.file.Truncate(st.size); err != nil {
		return err
	}
	w := newWriter(io.NewOffsetWriter(st.file, st.size), st.size)
	w.string("\n")
	rec, err := w.record(put, files, get)
	if err != nil {
		return err
	}
	if err := st.file.Sync(); err != nil {
		return err
	}
	st.apply(rec)
	st.records++
	st.size = w.at
	return nil
}

// value returns what a record is to have of a file; nil when that cannot be read.
func (st *state) value(name string, c *content, read func(string, *content) []byte) *value {
	if c == nil {
		return &value{gone: true}
	}
	old, has := st.files[name]
	if !has || old.digest != c.digest {
		if raw := read(name, c); raw != nil {
			return &value{digest: c.digest, raw: raw}
		}
	}
	if !has {
		return nil
	}
	return st.copyOf(name)
}

// copyOf returns what the state file has of a file.
func (st *state) copyOf(name string) *value {
	k := st.files[name]
	return &value{digest: k.digest, text: io.NewSectionReader(st.file, k.at, k.length)}
}

// rewrite replaces the file by one with a single record. A crash leaves the old file or
// the new one.
func (st *state) rewrite(assigned map[model.Name]assignment, files []string, get func(name string) *value) (err error) {
	f, err := os.CreateTemp(filepath.Dir(st.path), "."+filepath.Base(st.path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	w := newWriter(f, 0)
	rec, err := w.record(nonEmpty(assigned), files, get)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), st.path); err != nil {
		return err
	}
	st.close()
	next := newState(st.path)
	next.file, next.size, next.base, next.records = f, w.at, w.at, 1
	next.apply(rec)
	*st = *next
	return nil
}

func (st *state) close() {
	if st.file != nil {
		st.file.Close()
	}
}

// nonEmpty returns the assignments that a record is to have.
func nonEmpty(assigned map[model.Name]assignment) map[model.Name]*assignment {
	all := make(map[model.Name]*assignment, len(assigned))
	for name, a := range assigned {
		if !a.empty() {
			all[name] = &a
		}
	}
	return all
}
