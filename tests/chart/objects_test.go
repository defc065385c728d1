package chart_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// scheme knows all that the chart can make.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(s), monitoringv1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}()

// decode reads what helm rendered, strictly: a field that a type lacks, or that is
// given twice, fails the test.
func decode(t *testing.T, rendered string) (objects []runtime.Object) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(rendered)))
	defer documents.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		document := buffer[:n]
		if len(strings.TrimSpace(string(document))) == 0 {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

// find returns the one object of a type, or with the name if there are several.
func find[T runtime.Object](t *testing.T, objects []runtime.Object, match func(T) bool) T {
	t.Helper()
	for _, object := range objects {
		if o, ok := object.(T); ok && (match == nil || match(o)) {
			return o
		}
	}
	var none T
	t.Fatalf("the chart makes no such %T", none)
	return none
}

func daemonSet(t *testing.T, objects []runtime.Object) *appsv1.DaemonSet {
	t.Helper()
	return find[*appsv1.DaemonSet](t, objects, nil)
}

// encode returns an object as JSON.
func encode(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
