package kube

import (
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/beeline-lb/beeline/pkg/model"
)

// object is an API object.
type object interface {
	metav1.Object
	runtime.Object
}

// store takes the objects of one kind O from a reflector. It keeps the models
// M only, shared with the sink, and hands on what differs from what it has: a
// full list as one change, a change of metadata not at all.
//
// A reflector calls its store from one goroutine; others may call get.
type store[O object, M any] struct {
	// convert returns nil for what is not served.
	convert func(O) *M
	// same reports whether what is served does not differ.
	same func(a, b *M) bool
	// changed is given at least one model or name.
	changed func(put []*M, gone []model.Name)
	// mu guards known, which the reflector alone changes.
	mu    sync.RWMutex
	known map[model.Name]*M
	// listed is closed when the first full list has been handed on.
	listed chan struct{}
}

var _ cache.TransformingStore = (*store[object, model.LocalNode])(nil)

func newStore[O object, M any](convert func(O) *M, changed func([]*M, []model.Name)) *store[O, M] {
	return &store[O, M]{convert: convert, same: same[M], changed: changed, listed: make(chan struct{})}
}

func same[M any](a, b *M) bool { return reflect.DeepEqual(a, b) }

// Add hands on a new object.
func (s *store[O, M]) Add(obj any) error { return s.Update(obj) }

// Update hands on what obj has become.
func (s *store[O, M]) Update(obj any) error {
	e, err := s.entry(obj)
	if err != nil {
		return err
	}
	if e.model == nil {
		s.remove(e.name)
		return nil
	}
	if old := s.known[e.name]; old != nil && s.same(old, e.model) {
		return nil
	}
	s.mu.Lock()
	s.known[e.name] = e.model
	s.mu.Unlock()
	s.changed([]*M{e.model}, nil)
	return nil
}

// Delete hands on that obj is gone, or is no longer selected.
func (s *store[O, M]) Delete(obj any) error {
	o, ok := obj.(O)
	if !ok {
		return unexpected[O](obj)
	}
	s.remove(nameOf(o))
	return nil
}

func (s *store[O, M]) remove(name model.Name) {
	if _, ok := s.known[name]; ok {
		s.mu.Lock()
		delete(s.known, name)
		s.mu.Unlock()
		s.changed(nil, []model.Name{name})
	}
}

// Replace hands on how the full list objs differs from what is known.
func (s *store[O, M]) Replace(objs []any, _ string) error {
	var put []*M
	var gone []model.Name
	known := make(map[model.Name]*M, len(objs))
	for _, obj := range objs {
		e, err := s.entry(obj)
		if err != nil {
			return err
		}
		if e.model == nil {
			continue
		}
		if old := s.known[e.name]; old != nil && s.same(old, e.model) {
			e.model = old
		} else {
			put = append(put, e.model)
		}
		known[e.name] = e.model
	}
	for name := range s.known {
		if _, ok := known[name]; !ok {
			gone = append(gone, name)
		}
	}
	first := s.known == nil
	s.mu.Lock()
	s.known = known
	s.mu.Unlock()
	if len(put)+len(gone) > 0 {
		s.changed(put, gone)
	}
	if first {
		close(s.listed)
	}
	return nil
}

// get returns the model of an object that is known; nil: there is none.
func (s *store[O, M]) get(name model.Name) *M {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known[name]
}

// Resync does nothing: nothing here goes stale with time.
func (s *store[O, M]) Resync() error { return nil }

// Transformer reduces each object of a list while the list still comes in, so
// that no full list of API objects is ever in memory.
func (s *store[O, M]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.entry(obj) }
}

// entry is an object of a list, reduced.
type entry[M any] struct {
	name  model.Name
	model *M // nil is not served
}

// GetObjectMeta makes the reflector's own store accept an entry.
func (e *entry[M]) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: e.name.Namespace, Name: e.name.Name}
}

// entry returns the entry of an API object; an entry is returned as it is.
func (s *store[O, M]) entry(obj any) (*entry[M], error) {
	switch o := obj.(type) {
	case *entry[M]:
		return o, nil
	case O:
		return &entry[M]{name: nameOf(o), model: s.convert(o)}, nil
	}
	return nil, unexpected[O](obj)
}

func nameOf(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func unexpected[O object](obj any) error {
	var want O
	return fmt.Errorf("api server sent a %T where a %T was asked for", obj, want)
}
