package file

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// content are the objects of a file: valid by itself, with the API's defaults
// filled in. It is not changed after it was decoded.
type content struct {
	raw     []byte
	objects []*object
}

// id names an object of a kind.
type id struct {
	kind string
	model.Name
}

func (i id) String() string {
	if i.Namespace == "" {
		return i.kind + " " + i.Name.Name
	}
	return fmt.Sprintf("%s %s", i.kind, i.Name)
}

// object is one Service, EndpointSlice or Node of a file.
type object struct {
	id       id
	document int         // counted from 1
	root     *field.Path // nil is the document itself, else an item of a list

	service  *corev1.Service // nil for a slice
	families []model.Family  // to have a cluster IP of, the primary one first
	unmet    *yamldoc.Fault  // why the ranges cannot give it those; nil is that they can

	slice *model.Slice // nil for other kinds and for a slice to be ignored
	node  *model.Node  // nil for other kinds
}

// The kinds of objects that a file may hold.
const (
	kindService = "Service"
	kindSlice   = "EndpointSlice"
	kindNode    = "Node"
)

// decode reads a file's manifests. It returns every fault it finds, and content
// only when there is none. A file without a manifest is a fault: it is more
// likely cut short than meant to take its Services away.
func (r *rules) decode(raw []byte) (*content, []*yamldoc.Fault) {
	c := &content{raw: raw}
	docs, faults := yamldoc.Split(raw)
	if len(docs)+len(faults) == 0 {
		return nil, []*yamldoc.Fault{{Reason: "no manifest in it: delete the file to delete what it declared"}}
	}
	for _, d := range docs {
		objects, more := r.document(d)
		c.objects = append(c.objects, objects...)
		faults = append(faults, more...)
	}
	seen := map[id]*object{}
	for _, o := range c.objects {
		if first := seen[o.id]; first != nil {
			faults = append(faults, place(docs, o, "metadata.name",
				fmt.Sprintf("%s is already in document %d: keep one of them", o.id, first.document)))
			continue
		}
		seen[o.id] = o
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return c, nil
}

// services returns the Services among the objects.
func (c *content) services() []*object {
	var services []*object
	for _, o := range c.objects {
		if o.service != nil {
			services = append(services, o)
		}
	}
	return services
}

// path returns the field path from the document on of a path in the object.
func (o *object) path(path string) string { return yamldoc.Below(o.root, path) }

// place returns a fault at a path of an object that docs hold.
func place(docs []*yamldoc.Document, o *object, path, reason string) *yamldoc.Fault {
	i, _ := slices.BinarySearchFunc(docs, o.document, func(d *yamldoc.Document, number int) int { return d.Number - number })
	return docs[i].FaultAt(o.path(path), reason)
}

// document decodes a document's objects.
func (r *rules) document(d *yamldoc.Document) ([]*object, []*yamldoc.Fault) {
	data, faults := d.JSON()
	if len(faults) > 0 {
		return nil, faults
	}
	return r.objects(d, nil, data, metav1.TypeMeta{})
}

// objects decodes the object or the list of objects in data. What it does not
// say of its type is taken from implied.
func (r *rules) objects(d *yamldoc.Document, root *field.Path, data []byte, implied metav1.TypeMeta) ([]*object, []*yamldoc.Fault) {
	var tm metav1.TypeMeta
	if faults := d.Loose(root, data, &tm); len(faults) > 0 {
		return nil, faults
	}
	if tm == (metav1.TypeMeta{}) {
		tm = implied
	}
	switch gv := tm.APIVersion; {
	case gv == "v1" && tm.Kind == kindService:
		return r.service(d, root, data)
	case gv == discoveryv1.SchemeGroupVersion.String() && tm.Kind == kindSlice:
		return r.slice(d, root, data)
	case gv == "v1" && tm.Kind == kindNode:
		return r.node(d, root, data)
	case root != nil:
	case gv == "v1" && tm.Kind == "List":
		return r.list(d, data, metav1.TypeMeta{})
	case gv == "v1" && tm.Kind == "ServiceList":
		return r.list(d, data, metav1.TypeMeta{APIVersion: gv, Kind: kindService})
	case gv == "v1" && tm.Kind == "NodeList":
		return r.list(d, data, metav1.TypeMeta{APIVersion: gv, Kind: kindNode})
	case gv == discoveryv1.SchemeGroupVersion.String() && tm.Kind == "EndpointSliceList":
		return r.list(d, data, metav1.TypeMeta{APIVersion: gv, Kind: kindSlice})
	}
	return nil, []*yamldoc.Fault{d.FaultAt(yamldoc.Below(root, "kind"), fmt.Sprintf(
		"%q of apiVersion %q is not served: give Service or Node of v1, EndpointSlice of discovery.k8s.io/v1 or a List of them",
		tm.Kind, tm.APIVersion))}
}

// list decodes the items of a list of objects.
func (r *rules) list(d *yamldoc.Document, data []byte, item metav1.TypeMeta) ([]*object, []*yamldoc.Fault) {
	var l struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if faults := d.Strict(nil, data, &l); len(faults) > 0 {
		return nil, faults
	}
	var objects []*object
	var faults []*yamldoc.Fault
	for i, data := range l.Items {
		more, bad := r.objects(d, field.NewPath("items").Index(i), data, item)
		objects = append(objects, more...)
		faults = append(faults, bad...)
	}
	return objects, faults
}

func (r *rules) service(d *yamldoc.Document, root *field.Path, data []byte) ([]*object, []*yamldoc.Fault) {
	svc := &corev1.Service{}
	if faults := d.Strict(root, data, svc); len(faults) > 0 {
		return nil, faults
	}
	defaultService(svc)
	o := &object{id: id{kindService, nameOf(svc)}, document: d.Number, root: root, service: svc}
	errs := r.checkService(svc, root)
	if len(errs) == 0 {
		var err *field.Error
		if o.families, err = r.families(svc, root.Child("spec")); err != nil {
			o.unmet = d.FaultAt(err.Field, err.ErrorBody())
		}
	}
	return []*object{o}, d.Faults(errs)
}

func (r *rules) slice(d *yamldoc.Document, root *field.Path, data []byte) ([]*object, []*yamldoc.Fault) {
	slice := &discoveryv1.EndpointSlice{}
	if faults := d.Strict(root, data, slice); len(faults) > 0 {
		return nil, faults
	}
	if slice.Namespace == "" {
		slice.Namespace = metav1.NamespaceDefault
	}
	errs := checkSlice(slice, root)
	o := &object{id: id{kindSlice, nameOf(slice)}, document: d.Number, root: root, slice: convert.Slice(slice, r.annotations)}
	return []*object{o}, d.Faults(errs)
}

// node decodes a Node, of which only its name and addresses matter.
func (r *rules) node(d *yamldoc.Document, root *field.Path, data []byte) ([]*object, []*yamldoc.Fault) {
	node := &corev1.Node{}
	if faults := d.Strict(root, data, node); len(faults) > 0 {
		return nil, faults
	}
	errs := checkNode(node, root)
	o := &object{id: id{kindNode, nameOf(node)}, document: d.Number, root: root, node: convert.Node(node)}
	return []*object{o}, d.Faults(errs)
}

func nameOf(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}
