// Package okta stands in for Okta's SDK, which compiles for a minute. Vault asks for second factors with it; the development core has no
// logins of people.
package okta

import (
	"context"
	"errors"
	"net/http"
)

var errLeftOut = errors.New("Okta is left out of the development core")

type (
	// Configuration is empty.
	Configuration struct{ Context context.Context }
	// ConfigSetter has no effect.
	ConfigSetter func(*Configuration)
	// APIClient refuses everything.
	APIClient struct {
		UserAPI       UserAPI
		UserFactorAPI UserFactorAPI
	}
	// UserAPI refuses everything.
	UserAPI struct{}
	// UserFactorAPI refuses everything.
	UserFactorAPI struct{}
	// User is empty.
	User struct{}
	// UserFactorPush is empty.
	UserFactorPush struct{}
	// Factor is one of several kinds.
	Factor struct{ UserFactorPush *UserFactorPush }
	// VerifyResult is empty.
	VerifyResult struct{ Links map[string]any }
	// Transaction is in one of several states.
	Transaction struct {
		UserFactorPushTransactionWaiting, UserFactorPushTransaction         *struct{}
		UserFactorPushTransactionRejected, UserFactorPushTransactionTimeout *struct{}
	}
	// Request refuses when it is executed.
	Request[T any] struct{}
)

// WithToken has no effect.
func WithToken(string) ConfigSetter { return nil }

// WithOrgUrl has no effect.
func WithOrgUrl(string) ConfigSetter { return nil }

// WithCache has no effect.
func WithCache(bool) ConfigSetter { return nil }

// NewConfiguration refuses.
func NewConfiguration(...ConfigSetter) (*Configuration, error) { return nil, errLeftOut }

// NewAPIClient returns a client.
func NewAPIClient(*Configuration) *APIClient { return &APIClient{} }

// GetConfig returns an empty configuration.
func (*APIClient) GetConfig() *Configuration { return &Configuration{} }

// ListUsers refuses.
func (UserAPI) ListUsers(context.Context) Request[[]User] { return Request[[]User]{} }

// ListFactors refuses.
func (UserFactorAPI) ListFactors(context.Context, string) Request[[]Factor] {
	return Request[[]Factor]{}
}

// VerifyFactor refuses.
func (UserFactorAPI) VerifyFactor(context.Context, string, string) Request[VerifyResult] {
	return Request[VerifyResult]{}
}

// GetFactorTransactionStatus refuses.
func (UserFactorAPI) GetFactorTransactionStatus(context.Context, string, string, string) Request[Transaction] {
	return Request[Transaction]{}
}

// Filter has no effect.
func (r Request[T]) Filter(string) Request[T] { return r }

// Execute refuses.
func (Request[T]) Execute() (result T, _ *http.Response, _ error) { return result, nil, errLeftOut }

// GetId is empty.
func (User) GetId() string { return "" }

// GetId is empty.
func (*UserFactorPush) GetId() string { return "" }

// GetFactorResult is empty.
func (VerifyResult) GetFactorResult() string { return "" }
