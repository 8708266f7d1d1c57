package console

import (
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/broker"
)

// mostOwners is how many records of one credential are shown. There is one, unless an earlier request for it failed.
const mostOwners = 10

// whosePage is a digest and the records that contain it.
type whosePage struct {
	Digest string
	Bad    bool
	Owners []broker.View
}

// whose finds the owner of a credential by its digest. The credential itself never reaches the server: a script on the page
// computes the digest.
func (c *Console) whose(r *http.Request, who *visitor) (view, error) {
	asked := strings.TrimSpace(r.URL.Query().Get("credential"))
	p := whosePage{Digest: strings.TrimPrefix(strings.ToLower(asked), "sha256:")}
	const title = "Find a token's owner"
	if p.Digest == "" {
		return pageWhose.view(title, p), nil
	}
	digest, ok := readDigest(p.Digest)
	if !ok {
		p.Digest, p.Bad = "", true // it may be the credential itself, so do not show it again
		return pageWhose.view(title, p).withStatus(http.StatusUnprocessableEntity), nil
	}
	found, err := c.cfg.Broker.List(r.Context(), broker.Query{Credential: digest, Limit: mostOwners}, who.Auditor)
	p.Owners = found.Records
	return pageWhose.view(title, p), err
}
