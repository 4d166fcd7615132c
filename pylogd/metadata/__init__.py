"""What the cluster knows: a versioned tree behind `IMetadataStore`, and the registries kept in it."""
