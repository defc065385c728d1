package config

// Load returns what the files of --config say, with the flags that were given set over
// them, and defaults where neither says anything.
func (f *Flags) Load() (*Config, error) {
	c := &Config{origin: origin{files: make(map[string]string), flags: make(map[string]string)}}
	c.setDefaults()
	if err := f.apply(c); err != nil {
		return nil, err
	}
	c.setAddressDefaults()
	return c, nil
}
