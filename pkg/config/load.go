package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// kubeProxyAPIVersion is the version of a KubeProxyConfiguration.
var kubeProxyAPIVersion = kubeproxyconfig.SchemeGroupVersion.String()

// Load returns what the files of --config say, with the flags that were given set over
// them, and defaults where neither says anything. The error names everything that is
// wrong with the files' form; [Config.Settings] checks the values.
func (f *Flags) Load() (*Config, error) {
	c := newConfig()
	var errs []error
	for _, name := range f.Files {
		errs = append(errs, c.read(name)...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.setDefaults()
	if err := f.apply(c); err != nil {
		return nil, err
	}
	c.setDependentDefaults()
	return c, nil
}

// BPFFS returns where Beeline's pins are, for who removes them: it minds nothing else that the
// files say, so that a mistake in them, or a field of another version, leaves no node with
// programs that cannot be taken down.
func (f *Flags) BPFFS() (string, error) {
	if f.given.Changed("bpffs") {
		return f.given.GetString("bpffs")
	}
	at := Default().Beeline.BPFFS
	for _, name := range f.Files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("--config: %w: give --bpffs to do without", err)
		}
		docs, faults := yamldoc.Split(raw)
		if len(faults) > 0 {
			return "", fmt.Errorf("%w: give --bpffs to do without", errors.Join(yamldoc.InFile(name, faults)...))
		}
		for _, d := range docs {
			var found struct {
				metav1.TypeMeta `json:",inline"`
				BPFFS           string `json:"bpffs"`
			}
			faults := d.Loose(&found)
			if len(faults) > 0 && found.Kind == BeelineKind {
				return "", fmt.Errorf("%w: give --bpffs to do without", errors.Join(yamldoc.InFile(name, faults)...))
			}
			if found.Kind == BeelineKind && found.BPFFS != "" {
				at = found.BPFFS
			}
		}
	}
	return at, nil
}

// newConfig returns a configuration in which no value is set.
func newConfig() *Config {
	return &Config{origin: origin{
		places: make(map[string]place), flags: make(map[string]string), files: make(map[string][sha256.Size]byte),
	}}
}

// read takes over what a file holds.
func (c *Config) read(name string) []error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return []error{fmt.Errorf("--config: %w", err)}
	}
	c.origin.files[name] = sha256.Sum256(raw)
	return yamldoc.InFile(name, c.decode(name, raw))
}

// decode takes over what a file of that name holds.
func (c *Config) decode(name string, raw []byte) []*yamldoc.Fault {
	docs, faults := yamldoc.Split(raw)
	for _, d := range docs {
		faults = append(faults, c.document(place{name, d})...)
	}
	if len(docs)+len(faults) == 0 {
		return []*yamldoc.Fault{{Reason: fmt.Sprintf("holds neither a %s nor a %s", KubeProxyKind, BeelineKind)}}
	}
	return faults
}

// document takes over one document of a file.
func (c *Config) document(at place) []*yamldoc.Fault {
	tm, faults := at.document.Type()
	if len(faults) > 0 {
		return faults
	}
	var target any
	switch {
	case tm.APIVersion == kubeProxyAPIVersion && tm.Kind == KubeProxyKind:
		target = &c.KubeProxy
	case tm.APIVersion == BeelineAPIVersion && tm.Kind == BeelineKind:
		target = &c.Beeline
	default:
		return []*yamldoc.Fault{at.document.FaultAt("kind", fmt.Sprintf("%q of apiVersion %q is no configuration: give %s of %s or %s of %s",
			tm.Kind, tm.APIVersion, KubeProxyKind, kubeProxyAPIVersion, BeelineKind, BeelineAPIVersion))}
	}
	if first, ok := c.origin.places[tm.Kind]; ok {
		return []*yamldoc.Fault{at.document.FaultAt("kind", fmt.Sprintf("there is a %s in %s already (document %d): keep one of them",
			tm.Kind, first.file, first.document.Number))}
	}
	c.origin.places[tm.Kind] = at
	if tm.Kind == BeelineKind {
		return at.document.Strict(target)
	}
	// Other versions of kube-proxy have fields that this one does not, and their ConfigMap
	// is to serve it.
	c.origin.unknown, faults = at.document.Lenient(target)
	return faults
}
