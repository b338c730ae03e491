/**
 * What `netslot apply` carries out, in the order of these fields; `native/internal/netslot/plan.go` reads it. Namespaces are
 * named as under /run/netns, "" is the host's own. Prefixes are CIDR.
 */
export interface Plan {
  /** May have gone already. */
  readonly remove?: {
    readonly links?: readonly string[];
    readonly interfaces?: readonly Interface[];
    readonly namespaces?: readonly string[];
  };
  /** None of them may be there. */
  readonly namespaces?: readonly string[];
  /** Replace tables of the same names, in each namespace all in one step. `tables`: of `netslot compile`. */
  readonly rules?: readonly { readonly namespaces: readonly string[]; readonly tables: string }[];
  /** Namespaces that pass IPv4 packets on. */
  readonly forwarding?: readonly string[];
  /** None of the names may be taken. Both links are down. */
  readonly pairs?: readonly Pair[];
  /** May be set up already. */
  readonly interfaces?: readonly Interface[];
}

export interface Pair {
  readonly mtuBytes: number;
  readonly ends: readonly [LinkEnd, LinkEnd];
}

export interface LinkEnd {
  readonly namespace: string;
  readonly name: string;
  readonly mac: string;
}

export interface Interface {
  readonly namespace: string;
  readonly name: string;
  /** Brings it up, without an IPv6 address; loopback keeps `::1`. */
  readonly up?: boolean;
  /** `link`: never picked as the source of what goes elsewhere. */
  readonly addresses?: readonly { readonly prefix: string; readonly link?: boolean }[];
  /** Found without asking. */
  readonly neighbours?: readonly { readonly address: string; readonly mac: string }[];
  readonly routes?: readonly Route[];
}

/** Without `via` the link itself; `unreachable` leads nowhere and belongs to no link. */
export interface Route {
  readonly to: string;
  readonly via?: string;
  readonly source?: string;
  readonly unreachable?: boolean;
}
