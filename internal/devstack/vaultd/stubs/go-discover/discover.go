// Package discover stands in for go-discover, which brings the SDKs of a dozen clouds. Vault finds the peers of a raft cluster with it; the
// development core stores files and has no peers.
package discover

import (
	"errors"
	"log"
)

var errLeftOut = errors.New("discovery is left out of the development core")

// Provider finds addresses.
type Provider interface {
	Addrs(args map[string]string, l *log.Logger) ([]string, error)
	Help() string
}

// Providers are none.
var Providers = map[string]Provider{}

// Discover refuses everything.
type Discover struct{}

// Option has no effect.
type Option func(*Discover) error

// WithProviders has no effect.
func WithProviders(map[string]Provider) Option { return func(*Discover) error { return nil } }

// New returns a Discover.
func New(...Option) (*Discover, error) { return &Discover{}, nil }

// Addrs refuses.
func (*Discover) Addrs(string, *log.Logger) ([]string, error) { return nil, errLeftOut }

// Config is what Parse would return.
type Config map[string]string

// String is empty.
func (Config) String() string { return "" }

// Parse refuses.
func Parse(string) (Config, error) { return nil, errLeftOut }
