// Lets one order go in one transaction: the statements of benchmarks/peers/work.py.
const CANCEL = {
  name: "cancel",
  text:
    "DELETE FROM unpaid_orders WHERE order_id = $1 AND expires_at <= now() " +
    "RETURNING client_id, expires_at, version + 1 AS version",
};
const ITEMS = {
  name: "items",
  text: "SELECT sku, quantity FROM order_items WHERE order_id = $1 ORDER BY sku",
};
const RELEASE = {
  name: "release",
  text: "UPDATE stock_items SET reserved = reserved - $1 WHERE sku = $2",
};
const NOTE = {
  name: "note",
  text:
    "INSERT INTO order_events (order_id, type, at, data, client_id, expires_at, version) " +
    "VALUES ($1, 'order.cancelled', now(), '{\"reason\": \"expired\"}', $2, $3, $4)",
};
const DEADLOCK = "40P01";

async function cancel(client, orderId) {
  await client.query("BEGIN");
  try {
    const cancelled = await client.query({ ...CANCEL, values: [orderId] });
    if (cancelled.rowCount > 0) {
      const items = await client.query({ ...ITEMS, values: [orderId] });
      for (const { sku, quantity } of items.rows) {
        await client.query({ ...RELEASE, values: [quantity, sku] });
      }
      const { client_id, expires_at, version } = cancelled.rows[0];
      await client.query({ ...NOTE, values: [orderId, client_id, expires_at, version] });
    }
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

export default async function (orderId, helpers) {
  await helpers.withPgClient(async (client) => {
    for (;;) {
      try {
        return await cancel(client, orderId);
      } catch (error) {
        if (error.code !== DEADLOCK) throw error;
      }
    }
  });
}
