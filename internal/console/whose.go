package console

import (
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/broker"
)

// mostOwners is how many records of one credential are shown. There is one, unless somebody has asked in vain before.
const mostOwners = 10

// whosePage is a digest and the records of what has it.
type whosePage struct {
	Digest string
	Bad    bool
	Owners []broker.View
}

// whose tells whose a credential is, by its digest. The credential itself never comes here: the page's script makes the digest.
func (c *Console) whose(r *http.Request, who *visitor) (view, error) {
	asked := strings.TrimSpace(r.URL.Query().Get("credential"))
	p := whosePage{Digest: strings.TrimPrefix(strings.ToLower(asked), "sha256:")}
	v := view{page: "whose", title: "Find a token's owner"}
	if p.Digest == "" {
		v.data = p
		return v, nil
	}
	digest, ok := readDigest(p.Digest)
	if !ok {
		p.Digest, p.Bad = "", true // it may be what nobody should see again
		v.data, v.status = p, http.StatusUnprocessableEntity
		return v, nil
	}
	found, err := c.cfg.Broker.List(r.Context(), broker.Query{Credential: digest, Limit: mostOwners}, who.Auditor)
	p.Owners = found.Records
	v.data = p
	return v, err
}
