"""Every plotly figure of the product: tables in, figures out."""
