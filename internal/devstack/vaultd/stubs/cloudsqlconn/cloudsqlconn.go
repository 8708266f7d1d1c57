// Package cloudsqlconn stands in for the connector to Google's Cloud SQL, which the development core does not reach.
package cloudsqlconn

import "errors"

// ErrLeftOut is what everything here answers.
var ErrLeftOut = errors.New("Cloud SQL is left out of the development core")

type (
	// Option has no effect.
	Option struct{}
	// DialOption has no effect.
	DialOption struct{}
)

// WithIAMAuthN has no effect.
func WithIAMAuthN() Option { return Option{} }

// WithCredentialsJSON has no effect.
func WithCredentialsJSON([]byte) Option { return Option{} }

// WithDefaultDialOptions has no effect.
func WithDefaultDialOptions(...DialOption) Option { return Option{} }

// WithPrivateIP has no effect.
func WithPrivateIP() DialOption { return DialOption{} }

// WithPSC has no effect.
func WithPSC() DialOption { return DialOption{} }
