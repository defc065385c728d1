package config

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Write writes the configuration, with all defaults, to a file that --config reads
// back as the same.
func (c *Config) Write(name string) error {
	kubeProxy, err := yaml.Marshal(c.KubeProxy)
	if err != nil {
		return fmt.Errorf("encode %s: %w", KubeProxyKind, err)
	}
	beeline, err := yaml.Marshal(c.Beeline)
	if err != nil {
		return fmt.Errorf("encode %s: %w", BeelineKind, err)
	}
	content := append(append(kubeProxy, "---\n"...), beeline...)
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
