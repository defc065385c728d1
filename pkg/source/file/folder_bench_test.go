package file

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// BenchmarkFolder reads a folder of Services with 10 endpoints each at the start of an
// agent: CPU time, most resident memory, and how often as long as to decode the
// same objects one by one with encoding/json.
//
//	go test ./pkg/source/file -run '^$' -bench Folder/list/50000 -benchtime 1x
func BenchmarkFolder(b *testing.B) {
	for _, layout := range []struct {
		name    string
		perFile int // Services; 0 is all
		encode  func(b *testing.B, objects [][]byte) []byte
	}{
		{"list", 0, jsonList},
		{"files", 100, jsonList},
		{"single", 1, jsonDocuments},
		{"documents", 0, jsonDocuments},
		{"yaml", 100, yamlDocuments},
	} {
		for _, count := range []int{10000, 50000} {
			b.Run(fmt.Sprintf("%s/%d", layout.name, count), func(b *testing.B) {
				opts := Options{Dir: b.TempDir(), ServiceRanges: prefixes("10.96.0.0/12")}
				perFile := layout.perFile
				if perFile == 0 {
					perFile = count
				}
				size := writeFolder(b, opts.Dir, count, perFile, layout.encode)
				unmarshal := unmarshalTime(b, count)
				for b.Loop() {
					opts.StateFile = filepath.Join(b.TempDir(), "state")
					resetPeak(b)
					start := cpuTime(b)
					readOnce(b, opts, count)
					took := cpuTime(b) - start
					b.ReportMetric(took.Seconds(), "cpu-s")
					b.ReportMetric(took.Seconds()/unmarshal.Seconds(), "x-unmarshal")
					b.ReportMetric(peak(b), "peak-MiB")
				}
				b.ReportMetric(float64(size)/(1<<20), "input-MiB")
			})
		}
	}
}

// readOnce reads the folder, and fails unless it has that many Services.
func readOnce(b *testing.B, opts Options, count int) {
	b.Helper()
	s, sink := newSource(b, opts)
	w := &watcher{dir: opts.Dir}
	defer w.close()
	s.scan(w)
	if errs := s.Errors(); len(errs) > 0 || len(sink.services()) != count {
		b.Fatalf("%d Services, want %d; %v", len(sink.services()), count, errs)
	}
}

// manifestsOf returns the i-th Service and its slice, as JSON.
func manifestsOf(b *testing.B, i int) [][]byte {
	b.Helper()
	name := fmt.Sprintf("service-%d", i)
	port := corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: kindSlice},
		ObjectMeta: metav1.ObjectMeta{Name: name + "-abcde", Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for j := range 10 {
		n := 10*i + j
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", n%100)),
		})
	}
	var encoded [][]byte
	for _, o := range []any{
		&corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kindService},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{port}, Selector: map[string]string{"app": name}},
		},
		slice,
	} {
		data, err := json.Marshal(o)
		if err != nil {
			b.Fatal(err)
		}
		encoded = append(encoded, data)
	}
	return encoded
}

// writeFolder returns how many bytes it has written.
func writeFolder(b *testing.B, dir string, count, perFile int, encode func(*testing.B, [][]byte) []byte) int {
	b.Helper()
	size := 0
	for i := 0; i < count; i += perFile {
		var objects [][]byte
		for j := i; j < i+perFile; j++ {
			objects = append(objects, manifestsOf(b, j)...)
		}
		data := encode(b, objects)
		size += len(data)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.yaml", i)), data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return size
}

func joined(objects [][]byte, sep string) string {
	var s strings.Builder
	for i, o := range objects {
		if i > 0 {
			s.WriteString(sep)
		}
		s.Write(o)
	}
	return s.String()
}

func jsonList(_ *testing.B, objects [][]byte) []byte {
	return []byte(`{"apiVersion":"v1","kind":"List","items":[` + joined(objects, ",") + "]}\n")
}

func jsonDocuments(_ *testing.B, objects [][]byte) []byte { return []byte(joined(objects, "\n---\n")) }

func yamlDocuments(b *testing.B, objects [][]byte) []byte {
	var docs [][]byte
	for _, o := range objects {
		data, err := yaml.JSONToYAML(o)
		if err != nil {
			b.Fatal(err)
		}
		docs = append(docs, data)
	}
	return []byte(joined(docs, "---\n"))
}

// unmarshalTime returns the CPU time that encoding/json takes to decode the objects of that
// many Services.
func unmarshalTime(b *testing.B, count int) time.Duration {
	b.Helper()
	const sample = 1000
	var objects [][]byte
	for i := range sample {
		objects = append(objects, manifestsOf(b, i)...)
	}
	start := cpuTime(b)
	for i, data := range objects {
		var v any = &corev1.Service{}
		if i%2 == 1 {
			v = &discoveryv1.EndpointSlice{}
		}
		if err := json.Unmarshal(data, v); err != nil {
			b.Fatal(err)
		}
	}
	return (cpuTime(b) - start) * time.Duration(count/sample)
}

// cpuTime returns that of the process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeak makes peak begin anew (Linux 4.0).
func resetPeak(b *testing.B) {
	b.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

// peak returns the most memory that was resident, in MiB.
func peak(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
