// Package memoryapi has an API server without a store: it serves a service proxy the objects that a test
// gives it.
package memoryapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is what the server serves.
type Object interface {
	runtime.Object
	metav1.Object
}

// Server answers from memory: lists and watches of what a service
// proxy follows, and whatever events it tells. It takes objects as they are given; what a
// real one would refuse must not be put.
type Server struct {
	mu      sync.Mutex
	changed *sync.Cond
	version int
	kinds   map[string]*kind // by the last part of the path
}

// kind is the objects of one resource and what has become of them.
type kind struct {
	schema.GroupVersionKind
	objects map[string]Object // by namespace and name
	events  []change
}

// change replaces one object; old or new may be nil.
type change struct {
	version  int
	old, new Object
}

// New returns a server without objects.
func New() *Server {
	a := &Server{version: 1, kinds: make(map[string]*kind)}
	a.changed = sync.NewCond(&a.mu)
	for path, gvk := range map[string]schema.GroupVersionKind{
		"services":       corev1.SchemeGroupVersion.WithKind("Service"),
		"nodes":          corev1.SchemeGroupVersion.WithKind("Node"),
		"endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		"servicecidrs":   networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
	} {
		a.kinds[path] = &kind{GroupVersionKind: gvk, objects: make(map[string]Object)}
	}
	return a
}

// Replace makes the objects of a kind, the last part of its path, those given, which are not to be changed
// any more, and tells all watches of those that differ. same says which do not.
func Replace[O Object](a *Server, path string, want []O, same func(a, b O) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kinds[path]
	keep := make(map[string]bool)
	for _, o := range want {
		key := o.GetNamespace() + "/" + o.GetName()
		keep[key] = true
		old, had := k.objects[key].(O)
		if had && same(old, o) {
			continue
		}
		c := change{new: a.stamp(k, o)}
		if had {
			c.old = old
		}
		k.objects[key] = c.new
		a.tell(k, c)
	}
	for key, old := range k.objects {
		if !keep[key] {
			delete(k.objects, key)
			a.tell(k, change{old: old})
		}
	}
	a.changed.Broadcast()
}

// stamp returns a copy of the object with its kind and the next version.
func (a *Server) stamp(k *kind, o Object) Object {
	c := o.DeepCopyObject().(Object)
	c.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	c.SetResourceVersion(strconv.Itoa(a.version + 1))
	c.SetUID("0")
	return c
}

func (a *Server) tell(k *kind, c change) {
	a.version++
	c.version = a.version
	k.events = append(k.events, c)
}

// ServeHTTP answers lists and watches of the kinds, takes events, and knows nothing else.
func (a *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	k := a.kinds[path]
	switch {
	case path == "events":
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e"}}`)
		return
	case k == nil || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	selected, err := selection(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		a.list(w, k, selected)
		return
	}
	a.watch(w, r, k, selected)
}

// selection returns which objects a request is about.
func selection(r *http.Request) (func(Object) bool, error) {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(o Object) bool {
		values := fields.Set{"metadata.name": o.GetName()}
		if s, ok := o.(*corev1.Service); ok {
			values["spec.clusterIP"], values["spec.type"] = s.Spec.ClusterIP, string(s.Spec.Type)
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(values)
	}, nil
}

func (a *Server) list(w http.ResponseWriter, k *kind, selected func(Object) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []Object{}
	for _, o := range k.objects {
		if selected(o) {
			items = append(items, o)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{ // fails when the client is gone
		"kind": k.Kind + "List", "apiVersion": k.GroupVersion().String(),
		"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)},
		"items":    items,
	})
}

// watch streams changes until the client goes. A client that asks for the first list as a
// stream gets it so.
func (a *Server) watch(w http.ResponseWriter, r *http.Request, k *kind, selected func(Object) bool) {
	out := json.NewEncoder(w)
	send := func(what string, o any) bool {
		return out.Encode(map[string]any{"type": what, "object": o}) == nil
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // wakes the loop below when the client has gone
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	}()

	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range k.objects {
			if selected(o) && !send("ADDED", o) {
				return
			}
		}
		from = a.version
		if !send("BOOKMARK", a.bookmark(k)) {
			return
		}
	}
	next := 0
	for ; r.Context().Err() == nil; a.changed.Wait() {
		for ; next < len(k.events); next++ {
			c := k.events[next]
			before, now := c.old != nil && selected(c.old), c.new != nil && selected(c.new)
			ok := true
			switch {
			case c.version <= from:
			case before && now:
				ok = send("MODIFIED", c.new)
			case now:
				ok = send("ADDED", c.new)
			case before:
				gone := c.old.DeepCopyObject().(Object)
				gone.SetResourceVersion(strconv.Itoa(c.version))
				ok = send("DELETED", gone)
			}
			if !ok {
				return
			}
		}
		w.(http.Flusher).Flush()
	}
}

// bookmark ends the first list of a stream.
func (a *Server) bookmark(k *kind) any {
	return map[string]any{
		"kind": k.Kind, "apiVersion": k.GroupVersion().String(),
		"metadata": map[string]any{
			"resourceVersion": strconv.Itoa(a.version),
			"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		},
	}
}

// Kubeconfig returns the configuration of a client of the server that listens there.
func Kubeconfig(at netip.AddrPort) string {
	return `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test}}]
clusters: [{name: test, cluster: {server: "http://` + at.String() + `"}}]
`
}
