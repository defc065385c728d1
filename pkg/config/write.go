package config

import (
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// Write writes the configuration, with all defaults, to a file that --config reads
// back as the same.
func (c *Config) Write(name string) error {
	content, err := c.Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// Encode returns the configuration, with all defaults, as [Decode] reads it.
func (c *Config) Encode() ([]byte, error) {
	kubeProxy, err := yaml.Marshal(c.KubeProxy)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", KubeProxyKind, err)
	}
	beeline, err := yaml.Marshal(c.Beeline)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", BeelineKind, err)
	}
	return append(append(kubeProxy, "---\n"...), beeline...), nil
}

// Decode returns the configuration that content holds, with defaults where it says nothing. An
// error names the place as being in a file of that name.
func Decode(name string, content []byte) (*Config, error) {
	c := newConfig()
	if faults := c.decode(name, content); len(faults) > 0 {
		return nil, errors.Join(yamldoc.InFile(name, faults)...)
	}
	c.setDefaults()
	c.setDependentDefaults()
	return c, nil
}
