package file

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// record is a change of the state: {"version": 1, "assigned": {NAMESPACE/NAME: assignment},
// "files": {NAME: base64}}. What is null is no longer there.
type record struct {
	assigned map[model.Name]*assignment
	files    map[string]*kept
}

// reader reads records one after the other, and of what files hold one at a time.
type reader struct{ dec *json.Decoder }

func (r *reader) record() (*record, error) {
	rec := &record{assigned: map[model.Name]*assignment{}, files: map[string]*kept{}}
	version := 0
	err := r.object(func(key string) error {
		switch key {
		case "version":
			return r.dec.Decode(&version)
		case "assigned":
			return r.object(func(name string) error { return r.assigned(rec, name) })
		case "files":
			return r.object(func(name string) error { return r.content(rec, name) })
		}
		var other json.RawMessage
		return r.dec.Decode(&other)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: restore it from a copy", err)
	}
	if version != stateVersion {
		return nil, fmt.Errorf("it has version %d, this agent knows %d: run the agent that wrote it", version, stateVersion)
	}
	return rec, nil
}

// object calls f for each key of the object that follows, which may be null.
func (r *reader) object(f func(key string) error) error {
	switch begin, err := r.dec.Token(); {
	case err != nil || begin == nil:
		return err
	case begin != json.Delim('{'):
		return fmt.Errorf("%v is no object", begin)
	}
	for r.dec.More() {
		key, err := r.dec.Token()
		if err != nil {
			return err
		}
		if err := f(key.(string)); err != nil {
			return err
		}
	}
	_, err := r.dec.Token()
	return err
}

func (r *reader) assigned(rec *record, key string) error {
	var a *assignment
	if err := r.dec.Decode(&a); err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(key, "/")
	rec.assigned[model.Name{Namespace: namespace, Name: name}] = a
	if a == nil {
		return nil
	}
	for _, ip := range a.ClusterIPs {
		if !ip.IsValid() || ip.Zone() != "" || ip.Is4In6() {
			return fmt.Errorf("%q is no cluster IP of %s", ip, key)
		}
	}
	return nil
}

func (r *reader) content(rec *record, name string) error {
	var text json.RawMessage
	if err := r.dec.Decode(&text); err != nil {
		return err
	}
	if string(text) == "null" {
		rec.files[name] = nil
		return nil
	}
	var raw []byte
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	length := int64(len(text))
	rec.files[name] = &kept{digestOf(raw), r.dec.InputOffset() - length, length}
	return nil
}

// isSyntax reports whether a record ended early or is no JSON.
func isSyntax(err error) bool {
	var syntax *json.SyntaxError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &syntax)
}

// value is what a record has of a file.
type value struct {
	digest
	raw  []byte
	text io.Reader // raw as JSON has it, if that is at hand
	gone bool      // the file is no longer there
}

// writer writes a record.
type writer struct {
	*bufio.Writer       // its error stays
	at            int64 // in the file
}

func newWriter(to io.Writer, at int64) *writer {
	w := &writer{at: at}
	w.Writer = bufio.NewWriterSize(to, 64<<10)
	return w
}

// record writes what was assigned, and of each file what get returns; nil is nothing. It
// returns what it wrote.
func (w *writer) record(assigned map[model.Name]*assignment, files []string, get func(name string) *value) (*record, error) {
	rec := &record{assigned: assigned, files: map[string]*kept{}}
	byName := make(map[string]*assignment, len(assigned))
	for name, a := range assigned {
		byName[name.String()] = a
	}
	w.string(fmt.Sprintf(`{"version":%d,"assigned":`, stateVersion))
	if err := w.json(byName); err != nil {
		return nil, err
	}
	w.string(`,"files":{`)
	for _, name := range files {
		v := get(name)
		if v == nil {
			continue
		}
		if len(rec.files) > 0 {
			w.string(",")
		}
		if err := w.json(name); err != nil {
			return nil, err
		}
		w.string(":")
		var err error
		if rec.files[name], err = w.value(v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	w.string("}}")
	return rec, w.Flush()
}

func (w *writer) value(v *value) (*kept, error) {
	if v.gone {
		w.string("null")
		return nil, nil
	}
	at := w.at
	if v.text != nil {
		n, err := io.Copy(w.Writer, v.text)
		w.at += n
		return &kept{v.digest, at, w.at - at}, err
	}
	w.string(`"`)
	encoder := base64.NewEncoder(base64.StdEncoding, w.Writer)
	_, _ = encoder.Write(v.raw)
	_ = encoder.Close()
	w.at += int64(base64.StdEncoding.EncodedLen(len(v.raw)))
	w.string(`"`)
	return &kept{v.digest, at, w.at - at}, nil
}

func (w *writer) string(text string) {
	_, _ = w.WriteString(text)
	w.at += int64(len(text))
}

func (w *writer) json(v any) error {
	data, err := json.Marshal(v)
	w.string(string(data))
	return err
}
